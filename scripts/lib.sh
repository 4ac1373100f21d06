# Shared by the scripts: paths, packages to install, and long steps that show progress.
# Sourced by bash scripts after `set -euo pipefail`; not a program.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${TANDEM_CACHE:-$ROOT/.cache}
MODEL_NAME=SmolLM2-135M-Instruct.Q4_1.gguf
JOBS=$(nproc 2>/dev/null || echo 2)

say() { printf '%s\n' "$*" >&2; }
die() {
  say "$(basename "$0"): $*"
  exit 1
}

# step_run WHAT LOG COMMAND...: runs the command with its output in LOG. Shows the log's last line now and then, as a
# sign of progress. On failure it shows the log's tail and returns the command's status.
step_run() {
  local what=$1 log=$2 begin=$SECONDS pid rc=0 last every=15 n=0
  shift 2
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  [ -t 2 ] && every=1
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    n=$((n + 1))
    [ $((n % (5 * every))) -eq 0 ] || continue
    last=$(tail -c 400 "$log" | tr '\r' '\n' | grep -v '^[[:space:]]*$' | tail -n 1 | cut -c1-90 || true)
    if [ -t 2 ]; then
      printf '\r\033[K  %s: %d s  %s' "$what" $((SECONDS - begin)) "$last" >&2
    else
      say "  $what: $((SECONDS - begin)) s  $last"
    fi
  done
  wait "$pid" || rc=$?
  if [ -t 2 ]; then printf '\r\033[K' >&2; fi
  if [ "$rc" -eq 0 ]; then
    say "  $what: done in $((SECONDS - begin)) s"
  else
    say "  $what: FAILED after $((SECONDS - begin)) s (exit code $rc). The end of $log:"
    tail -n 40 "$log" | sed 's/^/    /' >&2
  fi
  return "$rc"
}

# ---- Debian packages ----

PACKAGES_BUILD="gcc g++ make cmake ninja-build pkg-config libc6-dev libuv1-dev libcjson-dev libutf8proc-dev libxxhash-dev
  libinih-dev libsystemd-dev zlib1g-dev libcurl4-openssl-dev libzmq3-dev"
PACKAGES_RUN="python3 python3-venv curl ca-certificates"
PACKAGES_TEST="libcmocka-dev clang ccache haproxy"
PACKAGES_PACKAGE="dpkg-dev file"

package_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# The HTTP parser: a library from Debian 13 on, C sources inside node-llhttp on Debian 12.
llhttp_package() {
  if apt-cache show libllhttp-dev >/dev/null 2>&1; then
    echo libllhttp-dev
  else
    echo node-llhttp
  fi
}

# msgpack-c: Debian 13 has a separate package for the C library, Debian 12 one package for C and C++.
msgpack_package() {
  if apt-cache show libmsgpack-c-dev >/dev/null 2>&1; then
    echo libmsgpack-c-dev
  else
    echo libmsgpack-dev
  fi
}

# clang's sanitizer and fuzzer runtimes are in a package of the compiler's version.
clang_runtime_package() {
  local v
  v=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]\+\)$/\1/p' | head -n 1)
  [ -z "$v" ] || echo "libclang-rt-$v-dev"
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    env DEBIAN_FRONTEND=noninteractive "$@"
  elif command -v sudo >/dev/null; then
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  else
    say "need root to install packages, and sudo is not here: $*"
    return 1
  fi
}

apt_update() { as_root apt-get -q update; }
apt_install() { as_root apt-get -q install -y --no-install-recommends "$@"; }

# missing_packages PACKAGE...: prints those that are not installed. Needs apt's lists only if any is missing.
missing_packages() {
  local p
  for p in "$@"; do
    package_installed "$p" || echo "$p"
  done
}

# install_packages build|test: installs missing packages. If all are installed, it does nothing, and needs neither root
# nor network.
install_packages() {
  local want missing log=$CACHE/log/apt.log
  command -v dpkg-query >/dev/null || {
    say "  not a Debian system: packages are not looked at. Needed: $PACKAGES_BUILD llhttp msgpack-c $PACKAGES_RUN"
    return 0
  }
  want="$PACKAGES_BUILD $PACKAGES_RUN"
  [ "$1" = test ] && want="$want $PACKAGES_TEST"
  [ "$1" = package ] && want="$want $PACKAGES_PACKAGE"
  # shellcheck disable=SC2086
  missing=$(missing_packages $want)
  if ! package_installed libllhttp-dev && [ ! -f /usr/share/llhttp/llhttp.c ]; then
    missing="$missing llhttp"
  fi
  package_installed libmsgpack-c-dev || package_installed libmsgpack-dev || missing="$missing msgpack"
  if [ "$1" = test ] && ! compgen -G '/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-x86_64.a' >/dev/null &&
    ! compgen -G '/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-aarch64.a' >/dev/null; then
    missing="$missing clang-runtime"
  fi
  missing=$(echo $missing)
  if [ -z "$missing" ]; then
    say "  all packages are here"
    return 0
  fi
  say "  missing: $missing"
  step_run "apt-get update" "$log" apt_update || return 1
  missing=${missing/clang-runtime/$(clang_runtime_package)}
  missing=${missing/llhttp/$(llhttp_package)}
  missing=${missing/msgpack/$(msgpack_package)}
  # shellcheck disable=SC2086
  step_run "apt-get install" "$log" apt_install $missing
}

# ---- building ----

# configure_and_build DIR [cmake options...]: Ninja build with all cores, of BUILD_TARGETS if that is set; the log is
# DIR/build.log. With ccache, folders that compile a file in the same way share its object. A folder made with another compiler is
# deleted first, because CMake would start again by itself and forget all other options, such as sanitizers. So is a folder that was
# moved or copied with the tree, because CMake refuses it.
configure_and_build() {
  local dir=$1 option wanted='' had='' of=''
  shift
  for option in "$@"; do
    case $option in -DCMAKE_C_COMPILER=*) wanted=$(command -v "${option#*=}") ;; esac
  done
  [ ! -f "$dir/CMakeCache.txt" ] || of=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$dir/CMakeCache.txt")
  if [ -n "$of" ] && ! [ "$of" -ef "$ROOT" ]; then
    say "  $(basename "$dir") was built of $of: it is begun anew"
    rm -rf "$dir"
  fi
  [ ! -f "$dir/CMakeCache.txt" ] || had=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$dir/CMakeCache.txt")
  if [ -n "$wanted" ] && [ -n "$had" ] && [ "$wanted" != "$had" ]; then
    say "  $(basename "$dir") was built by $had: it is begun anew"
    rm -rf "$dir"
  fi
  if command -v ccache >/dev/null; then
    export CCACHE_DIR=${CCACHE_DIR:-$CACHE/ccache} CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
    set -- -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache "$@"
  fi
  if [ -f "$dir/CMakeCache.txt" ] && ! grep -q '^CMAKE_GENERATOR:INTERNAL=Ninja$' "$dir/CMakeCache.txt"; then
    die "$dir was configured with another generator; remove it"
  fi
  step_run "configuring $(basename "$dir")" "$dir/configure.log" cmake -S "$ROOT" -B "$dir" -G Ninja "$@" &&
    step_run "building $(basename "$dir")" "$dir/build.log" cmake --build "$dir" -j "$JOBS" ${BUILD_TARGETS:+--target $BUILD_TARGETS}
}

# ---- CUDA ----

# nvcc_path: prints the path of an installed nvcc; fails if there is none.
nvcc_path() {
  command -v nvcc || { [ -x /usr/local/cuda/bin/nvcc ] && echo /usr/local/cuda/bin/nvcc; }
}

nvidia_driver() {
  command -v nvidia-smi >/dev/null || /sbin/ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'
}

# cuda_architecture: prints CMake's name for the first GPU's architecture; without a GPU, that of the H100 and H200.
cuda_architecture() {
  local cap
  cap=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1) || true
  case $cap in
    8.*) echo 80 ;;
    10.*) echo 100 ;;
    12.*) echo 120 ;;
    *) echo 90a ;;
  esac
}

# cuda_options auto|wheels|off: prints the cmake options of a build for this machine. auto: CUDA if there is a driver, with
# the installed toolkit or, if there is none, PyPI's wheels; wheels: always with the wheels.
cuda_options() {
  local nvcc
  case $1 in
    off) nvcc= ;;
    wheels) nvcc=$("$ROOT/scripts/cuda-toolkit") || return 1 ;;
    auto)
      if ! nvidia_driver; then
        say "  no NVIDIA driver: a build for the CPU"
        nvcc=
      elif ! nvcc=$(nvcc_path); then
        nvcc=$("$ROOT/scripts/cuda-toolkit") || return 1
      fi
      ;;
    *) die "--cuda is auto, wheels or off, not '$1'" ;;
  esac
  if [ -z "$nvcc" ]; then
    echo -DTD_CUDA=OFF
  else
    say "  CUDA by $nvcc for $(cuda_architecture)"
    echo "-DTD_CUDA=ON -DTD_CUDA_ARCHITECTURES=$(cuda_architecture) -DCMAKE_CUDA_COMPILER=$nvcc"
  fi
}

# ---- Python ----

# python_venv: makes $ROOT/.venv with the pinned packages of tests/requirements.txt, unless it is up to date.
python_venv() {
  local stamp=$ROOT/.venv/requirements.stamp
  if [ -f "$stamp" ] && cmp -s "$stamp" "$ROOT/tests/requirements.txt" && "$ROOT/.venv/bin/python" -c 'import openai' 2>/dev/null; then
    say "  .venv is up to date"
    return 0
  fi
  rm -rf "$ROOT/.venv"
  step_run "making .venv" "$CACHE/log/venv.log" python3 -m venv "$ROOT/.venv" || return 1
  step_run "installing tests/requirements.txt" "$CACHE/log/venv.log" \
    "$ROOT/.venv/bin/python" -m pip install --disable-pip-version-check -r "$ROOT/tests/requirements.txt" || return 1
  cp "$ROOT/tests/requirements.txt" "$stamp"
}

# ---- daemons ----

port_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# free_port FIRST: prints FIRST or the next port on which nothing listens.
free_port() {
  local p=$1
  while port_taken "$p"; do
    p=$((p + 1))
    [ "$p" -lt $(($1 + 200)) ] || die "no free port from $1 on"
  done
  echo "$p"
}

# Prints the meaning of an exit code of tandemd (docs/OPERATING.md lists them).
exit_meaning() {
  case $1 in
    64) echo "bad command line or options file" ;;
    65) echo "the model could not be loaded" ;;
    66) echo "the address could not be bound" ;;
    67) echo "not enough memory" ;;
    69) echo "no GPU that this build can use" ;;
    70) echo "device fault" ;;
    *) echo "see the log" ;;
  esac
}
