"""Parts of fit_predictor.py: splits, training with a progress bar, the report and its figure."""
