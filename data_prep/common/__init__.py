"""What several scripts need: folders of parts that a stopped run continues, libraries that keep quiet."""
