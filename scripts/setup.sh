#!/bin/sh
# Makes a bare machine ready. Usage: scripts/setup.sh run|test|bench
#
#   run    Python packages in .venv, and a Vulkan driver when the machine has none
#   test   the same, plus the test tools, the Vulkan validation layer and spirv-val
#   bench  as for run, plus PyTorch and matplotlib
#
# The Makefile calls this only when pyproject.toml or this script changed.
set -eu
cd "$(dirname "$0")/.."
what=${1:-run}

say() { printf '[setup] %s\n' "$*"; }
fail() { printf '[setup] %s\n' "$*" >&2; exit 1; }

# System packages, on Debian and Ubuntu. The first argument says why, for people on other systems.
install() {
    why=$1
    shift
    command -v apt-get >/dev/null || return 1
    as_root=
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || fail "$why. Ask an administrator to run: apt-get install $*"
        as_root=sudo
    fi
    say "$why: installing $*"
    log=$(mktemp)
    if ! { [ -n "${updated:-}" ] || $as_root apt-get update && $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "$@"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        fail "apt-get could not install $*. Check the network, or install it by hand; then try again."
    fi
    updated=yes
    rm -f "$log"
}

usable() { "$1" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

find_python() {
    for python in "${PYTHON:-python3}" python3.13 python3.12 python3.11 python3.10; do
        if command -v "$python" >/dev/null && usable "$python"; then return 0; fi
    done
    return 1
}

if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    find_python || install "Python's venv module is missing" python3 python3-venv ||
        fail "convtrain needs Python 3.10 or newer with its venv module. Install them with your package manager."
    find_python || fail "The system's Python is too old: convtrain needs 3.10 or newer. Set PYTHON=/path/to/python3.12, for example."
    say "creating .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
fi

extra=
[ "$what" = test ] && extra='[dev]'
say "installing Python packages"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".$extra" ||
    fail "pip could not install the packages. If it found no slangpy: that needs glibc 2.34 or newer (Debian 12, Ubuntu 22.04)."

if ! .venv/bin/convtrain devices >/dev/null 2>&1; then
    install "nothing provides Vulkan here" libvulkan1 mesa-vulkan-drivers ||
        fail "Nothing provides Vulkan here. Install a Vulkan loader and a driver: your GPU vendor's, or Mesa's lavapipe (Fedora: vulkan-loader mesa-vulkan-drivers; Arch: vulkan-icd-loader vulkan-swrast)."
    .venv/bin/convtrain devices >/dev/null || fail "Vulkan is installed, but offers no device (see above)."
fi

has_validation() {
    for folder in /usr/share /usr/local/share /etc "${HOME:-/}/.local/share" "${VK_LAYER_PATH:-}"; do
        for file in "$folder"/vulkan/explicit_layer.d/*alidation*.json "$folder"/*alidation*.json; do
            [ -e "$file" ] && return 0
        done
    done
    return 1
}

if [ "$what" = test ] && ! { has_validation && command -v spirv-val >/dev/null; }; then
    install "tools for the tests are missing" vulkan-validationlayers spirv-tools ||
        say "The tests of the Vulkan validation layer and of spirv-val will be skipped. To run them, install vulkan-validation-layers and spirv-tools."
fi

if [ "$what" = bench ]; then
    # Where there is no NVIDIA GPU, PyTorch's CPU build does, at a tenth of the size.
    index=
    command -v nvidia-smi >/dev/null || index='--extra-index-url https://download.pytorch.org/whl/cpu'
    say "installing PyTorch and matplotlib"
    # shellcheck disable=SC2086 # the option and its value are two words
    if .venv/bin/python -m pip install --quiet --disable-pip-version-check $index --editable '.[bench]'; then
        touch .venv/.ready-bench
    else
        say "PyTorch could not be installed: the benchmark measures convtrain alone."
    fi
fi

[ "$what" = test ] && touch .venv/.ready-test
touch .venv/.ready-run
say "ready: $(.venv/bin/convtrain devices | head -n 1)"
