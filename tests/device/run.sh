#!/bin/sh
# Everything that a machine with a GPU has to show, in a few minutes, from a checkout.
#
#   tests/device/run.sh [--device cuda|rocm|metal|emulator] [--small] [--wheels FOLDER] [--out FOLDER]
#
# Tests on the device, then the table of `benchmarks/on_device.py`, written to FOLDER (default: out/device).
# With --wheels a virtual environment is made of that folder alone, without a network; without it, PYTHON
# (default: python3) must have the packages of the extras build, test and the device's.
set -eu
device=cuda small="" wheels="" out=out/device python=${PYTHON:-python3}
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=$2; shift 2 ;;
    --small) small=--small; shift ;;
    --wheels) wheels=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    *) echo "run.sh: expected --device, --small, --wheels or --out, got $1" >&2; exit 2 ;;
  esac
done
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$root"
if [ -n "$wheels" ]; then
  "$python" -m venv "$out/venv"
  python=$out/venv/bin/python
  "$python" tests/device/requirements.py "$device" > "$out/requirements.txt"
  "$python" -m pip install -q --no-index --find-links "$wheels" -r "$out/requirements.txt"
fi
PYTHONPATH=$root:$root/runtime:$root/serve:$root/targets:$root/tests
DS4C_TEST_DEVICE=$device
DS4C_TEST_SMALL=$small
export PYTHONPATH DS4C_TEST_DEVICE DS4C_TEST_SMALL
"$python" -c 'import sys
from ds4c_runtime.devices import probe_devices
found = {s.name: s for s in probe_devices()}[sys.argv[1]]
print(f"{found.name}: {found.detail}")
sys.exit(0 if found.is_usable else 5)' "$device"
failed=0
"$python" -m pytest -q -p no:cacheprovider -m device tests/device -rs || failed=$?
"$python" -m benchmarks.on_device --device "$device" $small --out "$out" || failed=$?
exit $failed
