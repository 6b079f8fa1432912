# Language level, warnings and the build options.
option(HOLDFAST_TESTS "Build the tests" ON)
option(HOLDFAST_BENCHMARKS "Build the benchmarks" ON)
option(HOLDFAST_FUZZERS "Build the libFuzzer targets (clang only)" OFF)
option(HOLDFAST_SERVICES "Build the parts that need gRPC: coordinator, agent server, CLI" ON)
option(HOLDFAST_CRASH_POINTS "Compile in the named crash points that the crash tests use" ON)
option(HOLDFAST_ROOM_CHECKS "Link each module alone" ON)
option(HOLDFAST_HEADER_CHECKS "Compile each header alone" ON)
option(HOLDFAST_MUTATIONS "Compile the planted bugs in; only for the copy that tests/mutation/run.py makes" OFF)
set(HOLDFAST_SANITIZE "" CACHE STRING "Sanitizers for every target, e.g. address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Debian's folder for libraries of one architecture; other systems keep CMake's default.
if(CMAKE_LIBRARY_ARCHITECTURE)
  set(CMAKE_INSTALL_LIBDIR lib/${CMAKE_LIBRARY_ARCHITECTURE} CACHE PATH "Libraries, below the prefix")
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror)
# Line tables are enough for a backtrace and compile a third faster than full debug information. A Debug build has the
# latter.
add_compile_options($<$<CONFIG:RelWithDebInfo>:-g1>)
# GCC 12 warns about std::string internals once they are inlined (GCC bug 105329, 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  add_compile_options(-Wthread-safety)
endif()
# A unit of several sources takes more than 1 GiB of memory anyway, the largest 2 GiB. GCC compiles it a tenth faster if
# it collects no garbage until then. The units of what is installed are larger and may be built on a smaller machine.
if(HOLDFAST_TESTS AND CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1048576>)
endif()
if(HOLDFAST_SANITIZE)
  add_compile_options(-fsanitize=${HOLDFAST_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${HOLDFAST_SANITIZE})
  if(HOLDFAST_SANITIZE STREQUAL "thread")
    # Libraries that are not instrumented must not call the instrumented std::string of a program:
    # ThreadSanitizer would report races in them (tests/tsan.supp).
    add_link_options($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/local_symbols.map>)
  endif()
  # With inlined checks, GCC 12 warns about impossible paths (GCC bug 105562 and similar ones).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-stringop-overflow>
                        $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds>
                        $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  endif()
endif()
if(HOLDFAST_CRASH_POINTS)
  add_compile_definitions(HOLDFAST_CRASH_POINTS=1)
endif()

# $HOLDFAST_MUTATION selects a planted bug when a test runs. A tree with planted bugs is never built by accident, and no
# other tree contains any.
if(HOLDFAST_MUTATIONS AND NOT EXISTS ${CMAKE_SOURCE_DIR}/mutations.json)
  message(FATAL_ERROR "HOLDFAST_MUTATIONS needs the copy of the tree that tests/mutation/run.py makes")
elseif(EXISTS ${CMAKE_SOURCE_DIR}/mutations.json AND NOT HOLDFAST_MUTATIONS)
  message(FATAL_ERROR "this tree has planted bugs: set HOLDFAST_MUTATIONS, or build the original")
endif()

find_program(HOLDFAST_MOLD mold)
if(HOLDFAST_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
