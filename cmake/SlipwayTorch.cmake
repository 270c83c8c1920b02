# slipway::torch: LibTorch from the pinned wheel, CPU libraries only. (torch's own CMake package insists on CUDA, and
# linking libtorch.so would drag in libtorch_cuda.so; the CUDA half is loaded at run time where a GPU is.)
set(SLIPWAY_TORCH_ROOT "${SLIPWAY_DEPS_DIR}/torch/torch" CACHE PATH "The torch package directory of the wheel")
if(NOT EXISTS "${SLIPWAY_TORCH_ROOT}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch is not at ${SLIPWAY_TORCH_ROOT}; run scripts/setup.sh")
endif()
add_library(slipway_dep_torch INTERFACE)
add_library(slipway::torch ALIAS slipway_dep_torch)
# -idirafter: the wheel ships old protobuf and fmt headers, which must lose to the system's.
target_compile_options(slipway_dep_torch INTERFACE
  "SHELL:-idirafter ${SLIPWAY_TORCH_ROOT}/include"
  "SHELL:-idirafter ${SLIPWAY_TORCH_ROOT}/include/torch/csrc/api/include"
  -Wno-unused-parameter -Wno-pedantic -Wno-deprecated-declarations -Wno-extra)
target_compile_definitions(slipway_dep_torch INTERFACE USE_C10D_GLOO USE_DISTRIBUTED)
target_link_libraries(slipway_dep_torch INTERFACE
  "${SLIPWAY_TORCH_ROOT}/lib/libtorch_cpu.so" "${SLIPWAY_TORCH_ROOT}/lib/libc10.so" Threads::Threads)
target_link_options(slipway_dep_torch INTERFACE
  -Wl,--exclude-libs,ALL "-Wl,-rpath,${SLIPWAY_TORCH_ROOT}/lib")

# One precompiled header shared by every torch target (26 s -> 9 s a file).
function(slipway_use_torch_pch target)
  if(NOT TARGET slipway_torch_pch)
    file(WRITE "${CMAKE_BINARY_DIR}/pch/torch_pch.cc.new" "// Compiled once to carry the precompiled header.\n")
    configure_file("${CMAKE_BINARY_DIR}/pch/torch_pch.cc.new" "${CMAKE_BINARY_DIR}/pch/torch_pch.cc" COPYONLY)
    add_library(slipway_torch_pch STATIC "${CMAKE_BINARY_DIR}/pch/torch_pch.cc")
    target_link_libraries(slipway_torch_pch PUBLIC slipway_flags slipway::torch)
    target_precompile_headers(slipway_torch_pch PRIVATE
      <ATen/ATen.h> <torch/csrc/autograd/custom_function.h> <torch/library.h> <string> <vector> <memory>)
  endif()
  target_precompile_headers(${target} REUSE_FROM slipway_torch_pch)
  target_compile_options(${target} PRIVATE -fPIC)  # executables would use -fPIE, which the header was not made with
endfunction()
