# One way to make each kind of target. A library is named after its folder with '_' for '/': engine/format is
# slipway_engine_format, alias slipway::engine_format. DEPS name other targets without the prefix, and each DEP that is one
# of our folders is checked against cmake/layers.txt, the table of who may use whom.
set_property(GLOBAL PROPERTY SLIPWAY_TEST_SOURCES "")

function(slipway_allowed_layers folder out)
  file(STRINGS "${CMAKE_SOURCE_DIR}/cmake/layers.txt" lines REGEX "^[a-z]")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "^([^:]+):(.*)$" _ "${line}")
    if(CMAKE_MATCH_1 STREQUAL folder)
      string(STRIP "${CMAKE_MATCH_2}" allowed)
      separate_arguments(allowed)
      set(${out} "${allowed}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "folder '${folder}' has no line in cmake/layers.txt")
endfunction()

function(slipway_check_layers)
  file(RELATIVE_PATH folder "${CMAKE_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  if(folder MATCHES "^tests")  # may use everything
    return()
  endif()
  slipway_allowed_layers("${folder}" allowed)
  if(allowed STREQUAL "*")
    return()
  endif()
  string(REPLACE "/" "_" self "${folder}")
  string(REPLACE "/" "_" allowed_names "${allowed}")
  list(APPEND allowed_names proto_slipway_v1_grpc)  # its users list proto/slipway/v1; gRPC itself is kept out by slipway::grpc
  foreach(dep IN LISTS ARGN)
    if(dep MATCHES "^(common|proto|engine|worker|server|client)(_|$)" AND NOT dep STREQUAL self AND NOT dep IN_LIST allowed_names)
      message(FATAL_ERROR "${folder} may not use ${dep}: cmake/layers.txt allows ${allowed}")
    endif()
  endforeach()
endfunction()

function(slipway_link target visibility)
  target_link_libraries(${target} PRIVATE slipway_flags)
  foreach(dep IN LISTS ARGN)
    target_link_libraries(${target} ${visibility} slipway::${dep})
  endforeach()
  if("torch" IN_LIST ARGN)
    slipway_use_torch_pch(${target})
  endif()
endfunction()

# slipway_cc_library(NAME engine_format SRCS ... DEPS common absl ...). List 'torch' in DEPS to use LibTorch.
function(slipway_cc_library)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  slipway_check_layers(${ARG_DEPS})
  if(ARG_SRCS)
    add_library(slipway_${ARG_NAME} STATIC ${ARG_SRCS})
    slipway_link(slipway_${ARG_NAME} PUBLIC ${ARG_DEPS})
  else()
    add_library(slipway_${ARG_NAME} INTERFACE)
    foreach(dep IN LISTS ARG_DEPS)
      target_link_libraries(slipway_${ARG_NAME} INTERFACE slipway::${dep})
    endforeach()
  endif()
  add_library(slipway::${ARG_NAME} ALIAS slipway_${ARG_NAME})
endfunction()

# slipway_cc_binary(NAME slipwayd SRCS ... DEPS ...): the executable is ${CMAKE_BINARY_DIR}/bin/NAME.
function(slipway_cc_binary)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  slipway_check_layers(${ARG_DEPS})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  slipway_link(${ARG_NAME} PRIVATE ${ARG_DEPS})
endfunction()

# Only tests know where the sources lie: their golden data is there. A header of those that read it, not a definition for
# all: what a compiler cache keeps then serves clones in other folders.
file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/tests/support/source_dir.h" CONTENT
"#define SLIPWAY_SOURCE_DIR \"${CMAKE_SOURCE_DIR}\"\n")

# slipway_cc_test(NAME engine_format_test SRCS a_test.cc b_test.cc DEPS engine_format [LABELS unit] [TIMEOUT 120]
#                 [PROCESSORS 1] [NEEDS binary ...] [ARGS ...]). Label 'gpu': compiled everywhere, run only by scripts/gpu-tests.sh.
function(slipway_cc_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT;PROCESSORS" "SRCS;DEPS;LABELS;NEEDS;ARGS" ${ARGN})
  slipway_check_layers(${ARG_DEPS})
  add_executable(${ARG_NAME} ${ARG_SRCS} "${CMAKE_SOURCE_DIR}/tests/support/test_main.cc")
  slipway_link(${ARG_NAME} PRIVATE ${ARG_DEPS} gtest absl spdlog)
  target_compile_options(${ARG_NAME} PRIVATE -O1)  # tests spend their time in the libraries
  if(ARG_NEEDS)
    add_dependencies(${ARG_NAME} ${ARG_NEEDS})
  endif()
  foreach(src IN LISTS ARG_SRCS)
    get_filename_component(abs "${src}" ABSOLUTE)
    set_property(GLOBAL APPEND PROPERTY SLIPWAY_TEST_SOURCES "${abs}")
  endforeach()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_PROCESSORS)
    set(ARG_PROCESSORS 1)
  endif()
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} ${ARG_ARGS})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} PROCESSORS ${ARG_PROCESSORS}
    ENVIRONMENT "SLIPWAY_BIN_DIR=${CMAKE_BINARY_DIR}/bin;SLIPWAY_LIB_DIR=${CMAKE_BINARY_DIR}/lib")
endfunction()

# Runs protoc over PROTOS and compiles what it makes into the static library NAME; generated code goes to the build folder.
function(slipway_protoc_library name protos suffix protoc_args deps)
  set(root "${CMAKE_SOURCE_DIR}/proto")
  set(out "${CMAKE_BINARY_DIR}/proto")
  file(MAKE_DIRECTORY "${out}")
  file(GLOB_RECURSE all_protos CONFIGURE_DEPENDS "${root}/*.proto")
  set(srcs "")
  foreach(proto IN LISTS protos)
    file(RELATIVE_PATH rel "${root}" "${CMAKE_CURRENT_SOURCE_DIR}/${proto}")
    string(REGEX REPLACE "\\.proto$" "" stem "${rel}")
    set(generated "${out}/${stem}${suffix}.cc" "${out}/${stem}${suffix}.h")
    add_custom_command(OUTPUT ${generated} DEPENDS ${all_protos}
      COMMAND ${SLIPWAY_PROTOC} -I${root} ${protoc_args} ${root}/${rel}
      COMMENT "protoc ${rel}" VERBATIM COMMAND_EXPAND_LISTS)
    list(APPEND srcs ${generated})
  endforeach()
  add_library(slipway_${name} STATIC ${srcs})
  add_library(slipway::${name} ALIAS slipway_${name})
  target_include_directories(slipway_${name} SYSTEM PUBLIC "${out}")
  target_compile_options(slipway_${name} PRIVATE -O1)
  foreach(dep IN LISTS deps)
    target_link_libraries(slipway_${name} PUBLIC slipway::${dep})
  endforeach()
endfunction()

# slipway_proto_library(NAME proto_slipway_v1 PROTOS a.proto ... DEPS ...): messages, no gRPC.
function(slipway_proto_library)
  cmake_parse_arguments(ARG "" "NAME" "PROTOS;DEPS" ${ARGN})
  slipway_protoc_library(${ARG_NAME} "${ARG_PROTOS}" ".pb" "--cpp_out=${CMAKE_BINARY_DIR}/proto" "${ARG_DEPS}")
endfunction()

# slipway_grpc_library(NAME proto_slipway_v1_grpc PROTOS ... DEPS ...): the services of files whose messages are in DEPS.
function(slipway_grpc_library)
  cmake_parse_arguments(ARG "" "NAME" "PROTOS;DEPS" ${ARGN})
  slipway_protoc_library(${ARG_NAME} "${ARG_PROTOS}" ".grpc.pb"
    "--grpc_out=${CMAKE_BINARY_DIR}/proto;--plugin=protoc-gen-grpc=${SLIPWAY_GRPC_PLUGIN}" "${ARG_DEPS}")
endfunction()

# A test file that no target compiles is a test that cannot fail: the test of that name compares the tree with this list.
function(slipway_check_all_tests_registered)
  get_property(registered GLOBAL PROPERTY SLIPWAY_TEST_SOURCES)
  list(JOIN registered "\n" lines)
  file(WRITE "${CMAKE_BINARY_DIR}/registered_tests.txt" "${lines}\n")
  add_test(NAME registered_test COMMAND Python3::Interpreter "${CMAKE_SOURCE_DIR}/tests/arrows/registered_test.py"
    "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}/registered_tests.txt")
  set_tests_properties(registered_test PROPERTIES LABELS unit TIMEOUT 60)
endfunction()
