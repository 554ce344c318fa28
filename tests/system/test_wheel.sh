#!/usr/bin/env bash
# kvpool-test: static timeout=300
# The Python package's wheel has the C libraries and the licences of all that is in them, and needs nothing of the host but Python.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${BUILD:-$top/build}" && pwd)
/usr/bin/python3 -c 'import setuptools, pip, wheel' 2>/dev/null || { echo "pip, setuptools or wheel is not there: make wheel installs them"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
make -s -C "$top" wheel BUILD="$build" WHEEL="$dir/wheel" >"$dir/log" 2>&1 || { tail -5 "$dir/log"; exit 1; }
/usr/bin/python3 -m pip install -q --no-index --no-deps --target "$dir/site" "$dir"/wheel/kvpool-*.whl 2>"$dir/log" || { cat "$dir/log"; exit 1; }
cd "$dir/site"
for file in "$top"/client/python/kvpool/*.py; do cmp "$file" "kvpool/${file##*/}"; done
test -e kvpool/py.typed
cmp "$top/LICENSE" kvpool-*.dist-info/LICENSE
grep -q "Frank Denis" kvpool-*.dist-info/LICENSE.libsodium
for library in kvpool/lib/*.so.*; do
	! ldd "$library" | grep -v "linux-vdso\|ld-linux\|libc\.so\|libm\.so\|statically linked" || { echo "$library needs more than the C library"; exit 1; }
done
# with no library of the build tree or the system in its way, and no daemon
env -u KVPOOL_LIBRARY_PATH PYTHONPATH="$dir/site" /usr/bin/python3 -P - <<-'END'
	import kvpool, kvpool.attention
	from kvpool import _lib
	with kvpool.Client("/nonexistent/socket", connect_timeout=0.01) as client:
	    assert client.state == kvpool.State.DETACHED
	assert kvpool.attention.isa()
	used = {line.split()[-1] for line in open("/proc/self/maps") if "libkv" in line}
	assert used and all("/site/kvpool/lib/" in path for path in used), used
END
echo "$(ls kvpool/lib | wc -l) libraries, 2 licences"
