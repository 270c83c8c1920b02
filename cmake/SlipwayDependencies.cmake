# Imported targets for everything we link. gRPC, protobuf, Abseil and RocksDB are linked from their
# static archives: libtorch_cpu.so exports symbols of an older protobuf, and a static copy hidden by
# --exclude-libs keeps the two apart.
set(SLIPWAY_DEPS_DIR "${CMAKE_SOURCE_DIR}/.deps" CACHE PATH "Where scripts/setup.sh unpacks wheels")
find_package(Threads REQUIRED)
find_package(GTest REQUIRED)
find_package(yaml-cpp REQUIRED)

function(slipway_find_archives out)
  set(found "")
  foreach(name IN LISTS ARGN)
    find_library(SLIPWAY_ARCHIVE_${name} NAMES lib${name}.a REQUIRED)
    list(APPEND found "${SLIPWAY_ARCHIVE_${name}}")
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

function(slipway_interface name)
  add_library(slipway_dep_${name} INTERFACE)
  add_library(slipway::${name} ALIAS slipway_dep_${name})
  target_link_libraries(slipway_dep_${name} INTERFACE ${ARGN})
endfunction()

# Abseil: one group of all its archives, so that no list of its many libraries is kept here.
find_library(SLIPWAY_ABSL_BASE NAMES libabsl_base.a REQUIRED)
get_filename_component(absl_dir "${SLIPWAY_ABSL_BASE}" DIRECTORY)
file(GLOB absl_archives "${absl_dir}/libabsl_*.a")
slipway_interface(absl -Wl,--start-group ${absl_archives} -Wl,--end-group Threads::Threads)

slipway_find_archives(protobuf_archives protobuf)
slipway_interface(protobuf ${protobuf_archives} z Threads::Threads)

slipway_find_archives(grpc_archives grpc++_reflection grpc++_error_details grpc++ grpc gpr address_sorting upb re2 cares)
slipway_interface(grpc -Wl,--start-group ${grpc_archives} ${protobuf_archives} ${absl_archives} -Wl,--end-group
  ssl crypto z dl rt Threads::Threads)

slipway_find_archives(rocksdb_archives rocksdb)
slipway_interface(rocksdb ${rocksdb_archives} snappy lz4 zstd bz2 z dl Threads::Threads)

slipway_interface(spdlog spdlog fmt)
target_compile_definitions(slipway_dep_spdlog INTERFACE SPDLOG_COMPILED_LIB SPDLOG_FMT_EXTERNAL)
slipway_interface(prometheus prometheus-cpp-core)
# The library is built with these, and they change the layout of its classes.
slipway_interface(httplib cpp-httplib)
target_compile_definitions(slipway_dep_httplib INTERFACE
  CPPHTTPLIB_OPENSSL_SUPPORT CPPHTTPLIB_ZLIB_SUPPORT CPPHTTPLIB_BROTLI_SUPPORT)
slipway_interface(yaml yaml-cpp)
slipway_interface(xxhash xxhash)
slipway_interface(gtest GTest::gmock GTest::gtest)

find_program(SLIPWAY_PROTOC protoc REQUIRED)
find_program(SLIPWAY_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
find_program(SLIPWAY_CARGO cargo REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

include(SlipwayTorch)
include(SlipwayCuda)
