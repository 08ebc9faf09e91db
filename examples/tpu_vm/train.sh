#!/bin/bash
# Trains on a Spot TPU until the training is done, on a new TPU after each preemption. Run it in this folder, on any
# machine that has gcloud and is not taken away itself:
#
#   ACCELERATOR=v4-32 RUNTIME=tpu-vm-tf-... ./train.sh gs://bucket/runs/1
set -uo pipefail

directory=${1:?Expected where the checkpoints go, such as gs://bucket/runs/1}
accelerator=${ACCELERATOR:?Expected ACCELERATOR to be a type of TPU, such as v4-32}
runtime=${RUNTIME:?Expected RUNTIME to be a TPU software version with TensorFlow}
name=${TPU:-my-tpu}
zone=${ZONE:-us-central2-b}
crashes_left=${MAX_CRASHES:-3}

state() {
    gcloud compute tpus queued-resources describe "$name" --zone="$zone" --format='value(state.state)' 2>/dev/null
}

# Waits until the TPU is there. One that was taken away stays listed, and its name in use, until it is deleted.
provide() {
    while true; do
        case "$(state)" in
        ACTIVE) return ;;
        SUSPENDED | FAILED)
            gcloud compute tpus queued-resources delete "$name" --zone="$zone" --force --quiet || exit 1
            ;;
        "")
            gcloud compute tpus queued-resources create "$name" --zone="$zone" --node-id="$name" --spot \
                --accelerator-type="$accelerator" --runtime-version="$runtime" || exit 1
            ;;
        esac
        sleep "${POLL_SECONDS:-30}"
    done
}

while true; do
    provide
    gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all \
        --command="pip install --quiet 'keras-preempt[tpu]'"
    gcloud compute tpus tpu-vm scp ../tpu_loop.py "$name:" --zone="$zone" --worker=0
    # One program, on the first machine, coordinates all of them. With exec it is Python that the machine's shutdown
    # signals, and Python's exit status that comes back.
    gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=0 \
        --command="exec env TPU_LOAD_LIBRARY=0 python3 tpu_loop.py --once --tpu '$name' '$directory'"
    status=$?
    case "$status" in
    0) exit 0 ;;
    42) echo "Preempted, and saved." ;;
    255) echo "The connection is lost, as when the machine goes. The last checkpoint counts." ;;
    *)
        if ((crashes_left-- <= 0)); then
            exit "$status"
        fi
        echo "Failed with exit status $status. Starting again, from the last checkpoint."
        ;;
    esac
done
