#!/usr/bin/env bash
# Build .venv with the pinned versions of constraints.txt. Called by `make env`; safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null && usable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "bedplate needs Python 3.11 or newer; found: $(python3 --version 2>&1 || true)." >&2
    echo "Install one (Debian, Ubuntu: apt install python3 python3-venv)," >&2
    echo "or name it: make env PYTHON=/path/to/python3.12" >&2
    return 1
}

# Debian ships venv without ensurepip unless python3-venv is installed; its python3-pip also does.
create_venv() {
    if "$1" -c 'import ensurepip, venv' 2>/dev/null; then
        "$1" -m venv .venv
    elif "$1" -c 'import pip, venv' 2>/dev/null; then
        "$1" -m venv --without-pip .venv
        "$1" -m pip --python .venv/bin/python install --quiet pip
    else
        echo "$("$1" --version) cannot build an environment: its venv module is incomplete." >&2
        echo "Install it (Debian, Ubuntu: apt install python3-venv), then run make again." >&2
        return 1
    fi
}

# One line a package, or one line that counts up on a terminal.
show_progress() {
    local tty=0
    [ -t 1 ] && tty=1
    awk -v tty="$tty" '
        /^(Collecting|Obtaining|Downloading|Using cached) / {
            n++
            if (tty) { printf "\r\033[K  %d  %s %s", n, $1, $2 } else if (n % 25 == 0) { print "  " n " steps" }
            fflush()
        }
        /^Installing collected packages/ {
            if (tty) printf "\r\033[K"
            print "  installing"
            fflush()
        }
        END { if (tty) printf "\r\033[K" }
    '
}

if ! { [ -x .venv/bin/python ] && usable .venv/bin/python && .venv/bin/python -m pip --version; } \
    >/dev/null 2>&1; then
    python=$(find_python)
    echo "Creating .venv with $("$python" --version)"
    rm -rf .venv
    create_venv "$python"
fi

echo "Installing bedplate and its tools into .venv (some minutes the first time)"
log=.venv/install.log
if ! .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off \
    -c constraints.txt -e '.[dev]' 2>&1 | tee "$log" | show_progress; then
    tail -n 30 "$log" >&2
    echo "The install failed. The whole log is in $log" >&2
    exit 1
fi
touch .venv/.stamp
