#!/bin/sh
# A job that runs on one of several machines, though cron starts it on all:
#
#   0 3 * * *  app  FENCELOCK_CONNECT=tcp://10.0.0.1:4040 fencelock lock nightly --nonblock -- /opt/app/nightly.sh /var/lib/app
#
# It records what it has done, since the machines' clocks differ: the last to start may come when the
# first has ended.
set -eu
done_file="$1/nightly-$(date +%F)"
[ -e "$done_file" ] && exit 0
echo "the job under fence $FENCELOCK_FENCE of $FENCELOCK_NAME" >> "$1/log"
touch "$done_file"
