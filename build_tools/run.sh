#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh TITLE ENVIRONMENT...: both set-ups side by side, then environments of tox, two at a time. Whichever fails, all
# run but those that need a set-up which has failed. The last line names what failed.
set -u
title=$1 log=build/$1.log failed= chosen=
shift
mkdir -p build
unset MAKEFLAGS MFLAGS
make --no-print-directory --keep-going --jobs 2 setup plugin
[ -e .venv/.ready ] || failed=" setup"
[ -e .venv-plugin/.ready ] || failed="$failed plugin"

for environment; do
  case "$environment,$failed" in
    plugin-*,*plugin | fork-*,*setup* | check-core,*setup* | docs,*setup*) ;;
    plugin-* | fork-* | check-core,* | docs,* | *,) chosen="$chosen,$environment" ;;
  esac
done
tox=$(ls .venv/bin/tox .venv-plugin/bin/tox 2>/dev/null | head -n 1)
if [ -n "$chosen" ] && [ -n "$tox" ]; then
  "$tox" run-parallel --parallel 2 -e "${chosen#,}" 2>&1 | tee "$log"
  failed="$failed$(sed -n 's/^  \([a-z0-9.-]*\): FAIL.*/ \1/p' "$log" | tr -d '\n')"
  # Without its last line tox has not come to its end.
  grep -q 'congratulations :)' "$log" || failed="${failed:- tox}"
fi
if [ -n "$failed" ]; then
  echo "failed:$failed"
  exit 1
fi
echo "all parts of $title passed"
