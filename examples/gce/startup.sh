#!/bin/bash
# Runs as root at every start of the machine, also after a preemption. What it needs is in the instance's metadata.
set -euo pipefail

attribute() {
    curl --silent --show-error --fail --retry 5 --header 'Metadata-Flavor: Google' \
        "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/attributes/$1"
}

attribute train-service >"${UNIT:=/etc/systemd/system/train.service}"
{
    echo "WORKERS=\"$(attribute workers)\""
    echo "DIRECTORY=\"$(attribute directory)\""
} >"${ENVIRONMENT:=/etc/train.env}"
systemctl daemon-reload
systemctl start --no-block train.service
