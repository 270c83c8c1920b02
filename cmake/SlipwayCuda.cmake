# CUDA sources are compiled by calling nvcc ourselves: the toolkit from wheels has no layout that CMake's CUDA language
# accepts, and all we need are objects for one shared plug-in.
set(SLIPWAY_CUDA_ARCHITECTURES "90" CACHE STRING "SM versions to compile for, e.g. 80;90")
set(SLIPWAY_CUDA_HOME "" CACHE PATH "CUDA toolkit; empty: the wheels in .deps, then /usr/local/cuda")
foreach(candidate IN ITEMS "${SLIPWAY_CUDA_HOME}" "${SLIPWAY_DEPS_DIR}/cuda/nvidia/cu13" "/usr/local/cuda")
  if(candidate AND EXISTS "${candidate}/bin/nvcc" AND NOT SLIPWAY_NVCC)
    set(SLIPWAY_CUDA_ROOT "${candidate}")
    set(SLIPWAY_NVCC "${candidate}/bin/nvcc")
  endif()
endforeach()

# slipway_cuda_plugin(NAME name CUDA_SRCS a.cu ... SRCS b.cc ... [DEPS ...]): a shared library of CUDA operators and of
# what talks to NCCL. It resolves torch's CUDA symbols when it is loaded, on a machine that has them.
function(slipway_cuda_plugin)
  cmake_parse_arguments(ARG "" "NAME" "CUDA_SRCS;SRCS;DEPS" ${ARGN})
  set(gencode "")
  foreach(sm IN LISTS SLIPWAY_CUDA_ARCHITECTURES)
    list(APPEND gencode -gencode "arch=compute_${sm}a,code=sm_${sm}a")
  endforeach()
  set(includes -I${CMAKE_SOURCE_DIR} -I${SLIPWAY_CUDA_ROOT}/include
      -I${SLIPWAY_TORCH_ROOT}/include -I${SLIPWAY_TORCH_ROOT}/include/torch/csrc/api/include)
  set(objects "")
  foreach(src IN LISTS ARG_CUDA_SRCS)
    get_filename_component(abs "${src}" ABSOLUTE)
    get_filename_component(stem "${src}" NAME_WE)
    set(obj "${CMAKE_CURRENT_BINARY_DIR}/${stem}.cu.o")
    add_custom_command(OUTPUT "${obj}" DEPFILE "${obj}.d" DEPENDS "${abs}"
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${SLIPWAY_NVCC} -ccbin ${CMAKE_CXX_COMPILER} -std=c++20 -O3 -c ${gencode}
        --expt-relaxed-constexpr -Xcompiler -fPIC,-Wno-deprecated-declarations -MD -MF ${obj}.d -MT ${obj}
        -diag-suppress 20012,20013,20015,177 ${includes} ${abs} -o ${obj}
      COMMENT "nvcc ${src}" VERBATIM COMMAND_EXPAND_LISTS)
    list(APPEND objects "${obj}")
  endforeach()
  add_library(${ARG_NAME} SHARED ${objects} ${ARG_SRCS})
  set_target_properties(${ARG_NAME} PROPERTIES LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
  target_link_libraries(${ARG_NAME} PRIVATE slipway_flags slipway::torch ${ARG_DEPS}
    "${SLIPWAY_TORCH_ROOT}/lib/libc10_cuda.so" "${SLIPWAY_TORCH_ROOT}/lib/libtorch_cuda.so")
  target_include_directories(${ARG_NAME} SYSTEM PRIVATE "${SLIPWAY_CUDA_ROOT}/include" "${SLIPWAY_DEPS_DIR}/cuda/nvidia/nccl/include")
  target_compile_definitions(${ARG_NAME} PRIVATE USE_C10D_NCCL USE_CUDA)
  target_link_options(${ARG_NAME} PRIVATE -Wl,--allow-shlib-undefined -Wl,--unresolved-symbols=ignore-in-shared-libs)
  find_library(SLIPWAY_CUDART NAMES libcudart.so.13 libcudart.so
    PATHS "${SLIPWAY_DEPS_DIR}/torch/nvidia/cu13/lib" "${SLIPWAY_CUDA_ROOT}/lib" "${SLIPWAY_CUDA_ROOT}/lib64" NO_DEFAULT_PATH)
  target_link_libraries(${ARG_NAME} PRIVATE "${SLIPWAY_CUDART}")
endfunction()
