#!/bin/sh
# Makes the virtual environment that every make target runs in, and installs the package into it
# (editable, with the versions of constraints.txt). The Makefile calls it: scripts/set_up.sh VENV STAMP
# A failure is one line on standard error; what pip said is in VENV/install.log.
set -u

venv=$1
stamp=$2
log=$venv/install.log
# Present only while pip works: found at the start, it tells of a run that was cut short.
unfinished=$venv/.unfinished

fail() {
    echo "set-up failed: $*" >&2
    exit 1
}

# Succeeds if "$1" is a Python that can make our environment; else says why not in $why.
suits() {
    if ! command -v "$1" >/dev/null 2>&1; then
        why="not found"
    elif ! version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || [ -z "$version" ]; then
        why="doesn't run as a Python"
    elif ! "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        why="is $version"
    elif ! "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        why="is $version without venv (Debian: install python$version-venv)"
    else
        return 0
    fi
    return 1
}

find_python() {
    tried=
    # 3.11 first: the versions in constraints.txt were tested with it.
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3 python}; do
        if suits "$candidate"; then
            python=$candidate
            return 0
        fi
        tried="${tried:+$tried; }$candidate $why"
    done
    return 1
}

# The environment can be kept: its Python and pip run, and it was neither cut short nor moved here
# from another folder (its scripts would start that folder's Python).
usable() {
    [ -x "$venv/bin/python" ] && [ ! -e "$unfinished" ] || return 1
    [ ! -s "$stamp" ] || [ "$(cat "$stamp")" = "$(pwd -P)" ] || return 1
    "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null &&
        "$venv/bin/python" -m pip --version >/dev/null 2>&1
}

create() {
    # `venv --clear` empties the folder, so it must be ours: the default, or a virtual environment.
    if [ "$venv" != .venv ] && [ -d "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ] &&
        [ -n "$(ls -A "$venv")" ]; then
        fail "$venv holds something other than a virtual environment; name another folder with VENV="
    fi
    find_python || fail "shardinv needs Python 3.11 or newer (tried: $tried); install one, or name it: make PYTHON=/path/to/python3.11"
    echo "Making $venv with $python; the first time takes minutes and some gigabytes (log: $log)" >&2
    "$python" -m venv --clear "$venv" >/dev/null 2>&1 ||
        fail "'$python -m venv $venv' did not work (no space, or a folder that can't be written?)"
}

# The reason in a few words, from pip's log.
reason() {
    if grep -q -i -E 'no space left' "$log"; then
        echo "the disk is full"
    elif grep -q -i -E 'connection (broken|refused|reset|timed out)|failed to establish|name resolution|name or service not known|network is unreachable|timed out|max retries|proxyerror|sslerror' "$log"; then
        echo "no network, or the package index can't be reached"
    elif grep -q -E 'ResolutionImpossible|No matching distribution|Could not find a version' "$log"; then
        echo "a package wasn't found: $(grep -E 'No matching distribution|ResolutionImpossible' "$log" | tail -n 1 | sed 's/^ *ERROR: *//')"
    else
        echo "pip could not install the packages"
    fi
}

usable || create
: >"$unfinished"
echo "Installing shardinv into $venv" >&2
if ! PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_USER=0 "$venv/bin/python" -m pip install --no-input \
    -c constraints.txt -e '.[dev]' >"$log" 2>&1 </dev/null; then
    rm -f "$unfinished" # pip ended by itself and undid what it had begun
    fail "$(reason); pip's log is $log"
fi
if ! "$venv/bin/python" -c 'import deepinv, torch, torchvision' >>"$log" 2>&1; then
    fail "the installed packages don't import; run make again to start anew; the log is $log"
fi
rm -f "$unfinished"
pwd -P >"$stamp"
