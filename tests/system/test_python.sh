#!/usr/bin/env bash
# kvpool-test: static timeout=300
# The Python package against a real daemon: pytest and hypothesis, a model test among them.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
export BUILD=${BUILD:-build} PYTHONDONTWRITEBYTECODE=1
for python in /usr/bin/python3 python3; do
	if "$python" -c 'import pytest, hypothesis, numpy' 2>/dev/null; then
		cd "$top/tests/python"
		exec "$python" -m pytest -q -p no:cacheprovider
	fi
done
echo "pytest, hypothesis or numpy is not there: make deps"
exit 77
