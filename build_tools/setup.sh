#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# setup.sh fork|plugin FOLDER: makes a virtual environment in FOLDER. What this machine lacks is one line of error.
# PYTHON, TORCH_INDEX, VLLM_TARGET_DEVICE and CXX are explained in docs/internals/setup.md.
set -eu
rm -f "$2/.ready"
purpose=$1 folder=$2 target=${VLLM_TARGET_DEVICE:-cpu} torch=$(cat requirements/cpu.txt)
case $purpose in
  fork) supported='3.10 3.11 3.12' gigabytes=7 ;;
  plugin) supported='3.11 3.12 3.13' gigabytes=6 target=cpu ;;
esac
[ "$target" = cpu ] || gigabytes=20

fail() {
  echo "error: $*" >&2
  exit 1
}

# Prints the first interpreter that will do.
choose_python() {
  refused=
  for candidate in ${PYTHON:-python3.11 python3.12 python3.10 python3.13 python3}; do
    # A stub of a version manager is on the path, and runs nothing.
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    case " $supported " in
      *" $version "*) ;;
      *) refused="$refused $candidate is Python $version;" && continue ;;
    esac
    "$candidate" -c 'import venv, ensurepip' 2>/dev/null && echo "$candidate" && return
    refused="$refused $candidate has no module venv (on Debian: install python$version-venv);"
  done
  fail "no Python that can be used (one of $supported):${refused:- none runs;} install one, or set PYTHON=/path/to/python3.11"
}

require_room() {
  free=$(df -Pk "$1" | awk 'NR == 2 { print int($4 / 1000000) }')
  [ "$free" -ge "$2" ] || fail "set-up needs $2 GB in $1, and $free GB are free: make room$3"
}

# The kernels are compiled later, and against Python's headers.
require_compiler() {
  probe() { ${CXX:-c++} -fsyntax-only -I"$1" -x c++ - >/dev/null 2>&1; }
  echo 'int main() {}' | probe . || fail "no C++ compiler (${CXX:-c++} does not work): install g++, or name one in CXX"
  include=$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  echo '#include <Python.h>' | probe "$include" || fail "$1's header Python.h is missing: install python3-dev for it"
}

# Asks for one package, once: pip's own retries take minutes, and its error names no index. Packages in files need none.
require_index() {
  asked=$("$folder/bin/python" -m pip index versions uv -vv --retries 1 --timeout 7 --no-cache-dir 2>&1) && return
  tried=$(echo "$asked" | sed -n 's|^ *Could not fetch URL \(.*\)/uv/: \(.*\) - skipping$|\1 (\2); |p' |
    sed 's/([^;]*Caused by \(.*\)))/(\1)/; s/<[^>]*>[:,] //g' | tr -d '\n')
  [ -z "$tried" ] || fail "no package index is reached: ${tried}set another in PIP_INDEX_URL, or a proxy in HTTPS_PROXY"
}

# With -qq pip says nothing but errors.
pip_install() {
  "$folder/bin/python" -m pip install -qq --no-compile --no-warn-conflicts --disable-pip-version-check "$@" ||
    fail "pip could not install what is needed (its own message is above): is its package index reached, and is there room?"
}

# A package index for Linux may have but builds of torch for CUDA, with gigabytes of libraries. Where pip finds none for
# CPUs, uv is asked, which knows who has them.
install_torch() {
  if [ "$target" = cuda ]; then
    pip_install -r requirements/cuda.txt
  elif [ "$(uname -sm)" != "Linux x86_64" ] || [ -n "${TORCH_INDEX:-}" ] || pip_has_cpu_build; then
    pip_install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$torch"
  else
    "$folder/bin/uv" pip install --quiet --python "$folder/bin/python" --torch-backend cpu "$torch" || pip_install "$torch"
  fi
}

pip_has_cpu_build() {
  "$folder/bin/python" -m pip index versions torch 2>/dev/null | grep -q "${torch#torch==}+cpu"
}

python=$(choose_python) || exit 1
mkdir -p "$folder" || fail "$folder cannot be made"
[ -e "$folder/bin/python" ] || require_room "$folder" "$gigabytes" ''
require_room "${TMPDIR:-/tmp}" 2 ', or name another folder in TMPDIR'
[ "$purpose$target" != forkcpu ] || require_compiler "$python"
echo "== $folder with $python: some minutes on two cores where nothing is cached"
"$python" -m venv "$folder" >/dev/null || fail "$python cannot make a virtual environment at $folder"
require_index
echo "== packages"
pip_install --require-hashes --no-deps -r "requirements/lock-$purpose.txt"
echo "== PyTorch"
install_torch
case $purpose in
  fork)
    echo "== upstream"
    "$folder/bin/python" -m build_tools
    pip_install --no-build-isolation --no-deps --editable .
    ;;
  plugin)
    pip_install --no-build-isolation --no-deps --editable sequence_hooks
    "$folder/bin/python" -m build_tools.plugin
    ;;
esac
touch "$folder/.ready"
