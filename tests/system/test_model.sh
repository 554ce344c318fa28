#!/usr/bin/env bash
# kvpool-test: parallel static timeout=600
# The protocols hold in the models, and each rule taken out of them shows a fault.
command -v spin >/dev/null || { echo "spin is not installed"; exit 77; }
exec "$(dirname "$0")/../model/run" short
