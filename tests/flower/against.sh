#!/usr/bin/env bash
# Run the tests that use Flower against other versions of it: tests/flower/against.sh 1.38.0 1.40.0
#
# Makes a virtual environment per version (default directory: .flower-versions, or $FLOWER_VERSIONS), installs offbeat
# with `constraints.txt` except for Flower and what it pins itself, and prints a line per version.
# PYTEST_ARGS adds arguments of pytest.
set -eu
cd "$(dirname "$0")/../.."
root=${FLOWER_VERSIONS:-.flower-versions}
for wanted in "$@"; do
  env=$root/$wanted
  if [ ! -x "$env/bin/pytest" ]; then
    python3 -m venv "$env"
    "$env/bin/pip" install -qq -c constraints.txt -e '.[dev]'
    "$env/bin/pip" install -qq "flwr==$wanted"
  fi
  case $wanted in
    1.38.* | 1.39.*) chosen="tests/flower/test_compat.py tests/flower/virtual tests/flower/strategy" ;; # no nodes
    *) chosen="tests/flower tests/processes --deselect tests/processes/test_ray.py" ;;
  esac
  # shellcheck disable=SC2086
  said=$("$env/bin/pytest" -n 2 $chosen ${PYTEST_ARGS:-} 2>&1) || true
  echo "$said" > "$env/pytest.log"
  echo "Flower $("$env/bin/python" -c 'from importlib.metadata import version; print(version("flwr"))'): $(echo "$said" | tail -1)"
done
