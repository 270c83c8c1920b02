# Language level, warnings, sanitizers and build tools. Everything a target needs from here it gets
# through the INTERFACE targets slipway_flags (all our code).
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Assertions of the standard library and of ours stay on in every build: a trainer that computes
# rubbish quietly costs more than the check.
set(CMAKE_CXX_FLAGS_RELEASE "-O2")

set(SLIPWAY_SANITIZE "" CACHE STRING "Sanitizers for the whole build, e.g. address,undefined or thread")
if(SLIPWAY_SANITIZE)
  add_compile_options(-fsanitize=${SLIPWAY_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${SLIPWAY_SANITIZE})
endif()

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(SLIPWAY_CCACHE ccache)
  if(SLIPWAY_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER
        ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
        CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=10G ${SLIPWAY_CCACHE})
  endif()
endif()
find_program(SLIPWAY_MOLD mold)
if(SLIPWAY_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_library(slipway_flags INTERFACE)
target_compile_options(slipway_flags INTERFACE
  -Wall -Wextra -Wpedantic -Werror -Wshadow=local -Wnon-virtual-dtor -Woverloaded-virtual
  -Wno-missing-field-initializers
  -ffp-contract=off  # the same bits from the same source on every build
  -fno-semantic-interposition)
target_include_directories(slipway_flags INTERFACE "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}")
