#!/bin/sh
# A job that runs on one of several machines, though cron starts it on all:
#
#   FENCELOCK_CONNECT=tcp://10.0.0.1:4040
#   0 3 * * *  app  fencelock lock nightly -n -q --once nightly --for 1d -- /opt/app/nightly.sh /var/lib/app
#
# --once: the machines' clocks differ, so the last to start may come when the first has ended.
set -eu
echo "the job under fence $FENCELOCK_FENCE of $FENCELOCK_NAME" >> "$1/log"
