#!/bin/bash
# Creates a managed instance group of Spot machines that train together. Run it in this folder.
set -euo pipefail

zone=${ZONE:-us-central1-a}
group=${GROUP:-trainer}
count=${COUNT:-2}
image=${IMAGE:?Expected IMAGE to name an image with /opt/train, as README.md says}
directory=${DIRECTORY:?Expected DIRECTORY to be where the checkpoints go, such as gs://bucket/runs/digits}

# The names are given, not made up by the group: they are the addresses in TF_CONFIG.
names=()
for ((number = 0; number < count; number++)); do
    names+=("$group-$number")
done

gcloud compute instance-templates create "$group" \
    --machine-type=n1-standard-8 \
    --image="$image" \
    --provisioning-model=SPOT \
    --instance-termination-action=STOP \
    --maintenance-policy=TERMINATE \
    --scopes=cloud-platform \
    --metadata=workers="${names[*]}",directory="$directory" \
    --metadata-from-file=startup-script=startup.sh,train-service=train.service

gcloud compute instance-groups managed create "$group" --zone="$zone" --template="$group" --size=0
for name in "${names[@]}"; do
    gcloud compute instance-groups managed create-instance "$group" --zone="$zone" --instance="$name"
done
