# The libraries of the system, all looked for here, so that what is missing is said at once: a line for each, with its Debian
# package. TD_TESTS = AUTO | ON | OFF decides TD_HAVE_TESTS: AUTO builds the tests where what they need is found.
set(TD_TESTS "AUTO" CACHE STRING "Build the tests (need cmocka and Python): AUTO, ON or OFF")
set_property(CACHE TD_TESTS PROPERTY STRINGS AUTO ON OFF)
set(missing "")

# td_need(FOUND TEXT): notes TEXT if FOUND, the name of a variable, is false.
macro(td_need found text)
  if(NOT ${found})
    string(APPEND missing "\n  ${text}") # CMake leaves lines that begin with a space as they are
  endif()
endmacro()

find_package(PkgConfig QUIET)
if(NOT PKG_CONFIG_FOUND)
  message(FATAL_ERROR "pkg-config is missing: apt install pkg-config")
endif()
find_package(Threads REQUIRED)

pkg_check_modules(CJSON QUIET IMPORTED_TARGET libcjson)
td_need(CJSON_FOUND "libcjson: apt install libcjson-dev")
pkg_check_modules(UTF8PROC QUIET IMPORTED_TARGET libutf8proc)
td_need(UTF8PROC_FOUND "libutf8proc: apt install libutf8proc-dev")
pkg_check_modules(XXHASH QUIET IMPORTED_TARGET libxxhash)
td_need(XXHASH_FOUND "libxxhash: apt install libxxhash-dev")

# llhttp: Debian 13 has it as a library (libllhttp-dev, version 9, strict unless told otherwise); Debian 12 has its generated C
# sources (node-llhttp, version 8), which server/ compiles.
if(TD_SERVER)
  pkg_check_modules(UV QUIET IMPORTED_TARGET libuv)
  td_need(UV_FOUND "libuv: apt install libuv1-dev (tandemd needs it; -DTD_SERVER=OFF leaves that out)")
  pkg_check_modules(SYSTEMD QUIET IMPORTED_TARGET libsystemd)
  pkg_check_modules(LLHTTP QUIET IMPORTED_TARGET libllhttp)
  find_path(LLHTTP_SOURCES llhttp.c HINTS /usr/share/llhttp NO_CACHE)
  find_path(LLHTTP_INCLUDE llhttp.h HINTS /usr/share/include/llhttp NO_CACHE)
  find_library(LLHTTP_LIBRARY llhttp NO_CACHE)
  if(LLHTTP_FOUND OR (LLHTTP_INCLUDE AND (LLHTTP_SOURCES OR LLHTTP_LIBRARY)))
    set(TD_HAVE_LLHTTP ON)
  endif()
  td_need(TD_HAVE_LLHTTP "llhttp: apt install libllhttp-dev, on Debian 12 node-llhttp (tandemd needs it; \
-DTD_SERVER=OFF leaves that out)")
endif()

# TD_KV_EVENTS = AUTO | ON | OFF decides TD_HAVE_KV_EVENTS: publishing them wants libzmq and msgpack-c.
set(TD_KV_EVENTS "AUTO" CACHE STRING "Publish KV events (needs libzmq and msgpack-c): AUTO, ON or OFF")
set_property(CACHE TD_KV_EVENTS PROPERTY STRINGS AUTO ON OFF)
set(TD_HAVE_KV_EVENTS OFF)
if(TD_SERVER AND TD_KV_EVENTS)
  pkg_check_modules(ZMQ QUIET IMPORTED_TARGET libzmq)
  find_path(MSGPACK_INCLUDE msgpack/pack.h NO_CACHE) # packing is all in headers; and Debian 13's msgpack-c.pc names no folder
  if(ZMQ_FOUND AND MSGPACK_INCLUDE)
    set(TD_HAVE_KV_EVENTS ON)
  elseif(TD_KV_EVENTS STREQUAL "AUTO")
    message(STATUS "KV events: left out, libzmq and msgpack-c were not found (apt install libzmq3-dev, and libmsgpack-c-dev "
                   "or on Debian 12 libmsgpack-dev)")
  else()
    td_need(ZMQ_FOUND "libzmq: apt install libzmq3-dev (KV events need it; -DTD_KV_EVENTS=OFF leaves them out)")
    td_need(MSGPACK_INCLUDE "msgpack-c: apt install libmsgpack-c-dev, on Debian 12 libmsgpack-dev (KV events need it; \
-DTD_KV_EVENTS=OFF leaves them out)")
  endif()
endif()

# TD_PULL = AUTO | ON | OFF decides TD_HAVE_PULL: tandem-pull, which fetches models, wants libcurl.
set(TD_PULL "AUTO" CACHE STRING "Build tandem-pull (needs libcurl): AUTO, ON or OFF")
set_property(CACHE TD_PULL PROPERTY STRINGS AUTO ON OFF)
set(TD_HAVE_PULL OFF)
if(TD_PULL)
  pkg_check_modules(CURL QUIET IMPORTED_TARGET libcurl>=7.85)
  if(CURL_FOUND)
    set(TD_HAVE_PULL ON)
  elseif(TD_PULL STREQUAL "AUTO")
    message(STATUS "tandem-pull: left out, libcurl 7.85 was not found (apt install libcurl4-openssl-dev)")
  else()
    td_need(CURL_FOUND "libcurl: apt install libcurl4-openssl-dev (tandem-pull needs it; -DTD_PULL=OFF leaves that out)")
  endif()
endif()

set(TD_HAVE_TESTS OFF)
if(TD_TESTS)
  pkg_check_modules(CMOCKA QUIET IMPORTED_TARGET cmocka)
  find_package(Python3 3.9 QUIET COMPONENTS Interpreter)
  if(NOT TD_TESTS STREQUAL "AUTO")
    set(TD_HAVE_TESTS ON)
    td_need(CMOCKA_FOUND "cmocka: apt install libcmocka-dev (the tests need it; -DTD_TESTS=OFF leaves them out)")
    td_need(Python3_FOUND "Python 3.9: apt install python3 (the tests need it; -DTD_TESTS=OFF leaves them out)")
  elseif(CMOCKA_FOUND AND Python3_FOUND)
    set(TD_HAVE_TESTS ON)
  else()
    message(STATUS "Tests: left out, cmocka or Python 3.9 was not found (apt install libcmocka-dev python3)")
  endif()
endif()

if(missing)
  message(FATAL_ERROR "Packages are missing:${missing}")
endif()
