# shellcheck shell=bash
# Question files of a recipe, built with data_prep/build_questions.py where they are missing. Sourced by grpo_fsdp.sh.
#
#   TRAIN_DATA  name of the training pool      VAL_DATA  names of the validation sets
#
# Sets TRAIN_FILE and VAL_FILES (absolute, the latter separated by commas) unless the user named other files.

# Arguments of build_questions.py for one data set; the training pools are the paper's (appendix D.1).
question_arguments() {
    case $1 in
    math) echo "math --evaluation $DATA_DIR/math500.parquet --drop-contaminated" ;;
    deepscaler) echo "deepscaler --max-questions 10240" ;;
    orz) echo "orz --max-questions 8192" ;;
    deepmath) echo "deepmath --max-questions 8192" ;;
    gsm8k) echo "gsm8k --split test" ;;
    # 512 questions to validate on, and nothing that overlaps with them in the pool. SCP_FILE: ProRL's own file, if you have it.
    scp25k_heldout) echo "scp25k --max-questions 512 --seed 2 --data-source scp25k_heldout ${SCP_FILE:+--local-file $SCP_FILE}" ;;
    scp25k)
        echo "scp25k --max-questions 25000 --evaluation $DATA_DIR/scp25k_heldout.parquet --drop-contaminated" \
            "${SCP_FILE:+--local-file $SCP_FILE}"
        ;;
    *) echo "$1" ;;
    esac
}

# Validation sets first: training pools are cleaned with them. With an argument: print the commands instead.
build_missing_questions() {
    local name arguments
    for name in "${TO_BUILD[@]}"; do
        [[ ! -e $DATA_DIR/$name.parquet ]] || continue
        read -ra arguments <<<"$(question_arguments "$name")"
        ${1:-} "$PYTHON" data_prep/build_questions.py "${arguments[@]}" --output "$DATA_DIR/$name.parquet"
    done
}

# Those that a run would build, absolute, separated by commas.
missing_questions() {
    local name
    for name in "${TO_BUILD[@]}"; do
        [[ -e $DATA_DIR/$name.parquet ]] || realpath -m "$DATA_DIR/$name.parquet"
    done | paste -sd,
}

TO_BUILD=()
if [[ -z $VAL_FILES ]]; then
    TO_BUILD+=("${VAL_DATA[@]}")
    VAL_FILES=$(printf "$DATA_DIR/%s.parquet," "${VAL_DATA[@]}")
fi
if [[ -z $TRAIN_FILE ]]; then
    TO_BUILD+=("$TRAIN_DATA")
    TRAIN_FILE=$DATA_DIR/$TRAIN_DATA.parquet
fi
TRAIN_FILE=$(realpath -m "$TRAIN_FILE")
IFS=, read -ra VAL_LIST <<<"$VAL_FILES"
VAL_FILES=$(realpath -m "${VAL_LIST[@]}" | paste -sd,)
