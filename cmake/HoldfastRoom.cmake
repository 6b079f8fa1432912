# holdfast_room(<target> SOURCES ... HEADERS ... [DEPENDS ...] [PRIVATE_DEPENDS ...])
#
# Makes one module ("room"): a static library, a check that each header compiles alone (target header_checks),
# and a link test. The link test links the complete archive against only the declared dependencies, so that
# the use of an undeclared module is a build failure. A folder can set HOLDFAST_PRECOMPILED to a target of
# holdfast_precompile(), whose headers its rooms then have precompiled.
function(holdfast_room target)
  cmake_parse_arguments(ROOM "" "" "SOURCES;HEADERS;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(${target} STATIC ${ROOM_SOURCES})
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${target} PUBLIC ${ROOM_DEPENDS} PRIVATE ${ROOM_PRIVATE_DEPENDS})
  holdfast_room_uses(${CMAKE_CURRENT_SOURCE_DIR} ${ROOM_DEPENDS} ${ROOM_PRIVATE_DEPENDS})
  if(HOLDFAST_PRECOMPILED)
    target_precompile_headers(${target} REUSE_FROM ${HOLDFAST_PRECOMPILED})
  endif()
  if(HOLDFAST_HEADER_CHECKS)
    holdfast_check_headers(${target} ${ROOM_HEADERS})
  endif()
  if(NOT HOLDFAST_ROOM_CHECKS)
    return()
  endif()

  set(link_main ${CMAKE_CURRENT_BINARY_DIR}/link_check/${target}.cc)
  file(CONFIGURE OUTPUT ${link_main} CONTENT "int main() { return 0; }\n")
  add_executable(${target}_link ${link_main})
  set_target_properties(${target}_link PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/link_check)
  target_link_libraries(${target}_link PRIVATE
    -Wl,--whole-archive $<TARGET_FILE:${target}> -Wl,--no-whole-archive
    ${ROOM_DEPENDS} ${ROOM_PRIVATE_DEPENDS})
  add_dependencies(${target}_link ${target})
endfunction()

# holdfast_precompile(<target> HEADERS ... DEPENDS ...): precompiles headers of libraries, which take most of the time
# of a room that includes them. The preset dev does without, so that each room must include what it uses.
function(holdfast_precompile target)
  cmake_parse_arguments(PRECOMPILE "" "" "HEADERS;DEPENDS" ${ARGN})
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${target}.cc CONTENT "")
  add_library(${target} STATIC ${CMAKE_CURRENT_BINARY_DIR}/${target}.cc)
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${target} PUBLIC ${PRECOMPILE_DEPENDS})
  target_precompile_headers(${target} PRIVATE ${PRECOMPILE_HEADERS})
endfunction()

# holdfast_room_uses(<folder> <target>...): records which rooms a room uses. Other targets are ignored.
function(holdfast_room_uses folder)
  file(RELATIVE_PATH room ${CMAKE_SOURCE_DIR} ${folder})
  set(uses)
  foreach(target IN LISTS ARGN)
    # The messages of a service belong to the room that holds the .proto file.
    string(REGEX REPLACE "^(holdfast_[a-z]+)_proto$" "\\1_api" target "${target}")
    if(target MATCHES "^holdfast_(base|cli)$")
      list(APPEND uses "${CMAKE_MATCH_1}")
    elseif(target MATCHES "^holdfast_(base|storage|agent|coordinator|client|cli|faults|testing)_([a-z]+)$")
      list(APPEND uses "${CMAKE_MATCH_1}/${CMAKE_MATCH_2}")
    endif()
  endforeach()
  list(REMOVE_ITEM uses "${room}")
  list(REMOVE_DUPLICATES uses)
  list(SORT uses)
  list(JOIN uses " " uses)
  set_property(GLOBAL APPEND PROPERTY HOLDFAST_ROOMS "${room}: ${uses}")
endfunction()

# Writes rooms.txt in the build folder: "room: rooms that it uses", a line each. The tidy test and
# cmake/room_graph.py read it.
function(holdfast_write_rooms)
  get_property(rooms GLOBAL PROPERTY HOLDFAST_ROOMS)
  list(SORT rooms)
  list(JOIN rooms "\n" text)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/rooms.txt CONTENT "${text}\n" @ONLY)
endfunction()

# holdfast_check_headers(<target> <header>...): checks that each header of the module compiles alone.
function(holdfast_check_headers target)
  set(sources)
  foreach(header IN LISTS ARGN)
    file(RELATIVE_PATH from_root ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${header})
    string(MAKE_C_IDENTIFIER ${from_root} id)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/header_check/${id}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${from_root}\"\n")
    list(APPEND sources ${source})
  endforeach()
  if(NOT sources)
    return()
  endif()
  add_library(${target}_header_checks OBJECT ${sources})
  set_target_properties(${target}_header_checks PROPERTIES UNITY_BUILD OFF
    CXX_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/cmake/syntax_only.sh)
  target_link_libraries(${target}_header_checks PRIVATE ${target})
  if(NOT TARGET header_checks)
    add_custom_target(header_checks)
  endif()
  add_dependencies(header_checks ${target}_header_checks)
endfunction()

# holdfast_proto(<target> <file.proto> [DEPENDS ...]): makes a library of the messages and gRPC stubs. Generated
# code is compiled without warnings.
function(holdfast_proto target proto)
  cmake_parse_arguments(PROTO "" "" "DEPENDS" ${ARGN})
  file(RELATIVE_PATH from_root ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${proto})
  string(REGEX REPLACE "\\.proto$" "" stem ${from_root})
  set(out ${CMAKE_BINARY_DIR}/generated)
  set(sources ${out}/${stem}.pb.cc ${out}/${stem}.grpc.pb.cc)
  set(headers ${out}/${stem}.pb.h ${out}/${stem}.grpc.pb.h)
  add_custom_command(
    OUTPUT ${sources} ${headers}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${out}
    COMMAND protobuf::protoc --proto_path=${CMAKE_SOURCE_DIR} --cpp_out=${out} --grpc_out=${out}
            --plugin=protoc-gen-grpc=${HOLDFAST_GRPC_PLUGIN} ${from_root}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${proto}
    VERBATIM)
  add_library(${target} STATIC ${sources} ${headers})
  target_include_directories(${target} SYSTEM PUBLIC ${out})
  target_link_libraries(${target} PUBLIC PkgConfig::grpc protobuf::libprotobuf ${PROTO_DEPENDS})
  target_compile_options(${target} PRIVATE -w)
endfunction()

# Tests are compiled more often than they run, so compile time matters more than their speed.
set(HOLDFAST_TEST_OPTIONS $<$<CONFIG:RelWithDebInfo>:-O1>)

# holdfast_test_headers(<target> [HEADERS ...] [DEPENDS ...]): precompiles the headers that every test includes, and
# others. The target is an executable, because the compiler accepts precompiled headers only with the flags that they
# were made with. Tests use the target that HOLDFAST_TEST_PRECOMPILED names.
function(holdfast_test_headers target)
  cmake_parse_arguments(PRECOMPILE "" "" "HEADERS;DEPENDS" ${ARGN})
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/headers_main.cc CONTENT "int main() { return 0; }\n")
  add_executable(${target} EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/headers_main.cc)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(${target} PRIVATE ${HOLDFAST_TEST_OPTIONS})
  target_link_libraries(${target} PRIVATE ${PRECOMPILE_DEPENDS} GTest::gmock)
  target_precompile_headers(${target} PRIVATE <gmock/gmock.h> <gtest/gtest.h>
    <chrono> <filesystem> <fstream> <functional> <map> <optional> <string> <thread> <vector> ${PRECOMPILE_HEADERS})
endfunction()

# holdfast_test(<name> SOURCES ... DEPENDS ... [TIMEOUT s] [LABELS ...] [SERIAL]): one GoogleTest
# binary, one ctest entry.
function(holdfast_test name)
  cmake_parse_arguments(TEST "SERIAL" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  add_executable(${name} ${TEST_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(${name} PRIVATE ${HOLDFAST_TEST_OPTIONS})
  target_precompile_headers(${name} REUSE_FROM ${HOLDFAST_TEST_PRECOMPILED})
  target_link_libraries(${name} PRIVATE ${TEST_DEPENDS} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 120)
  endif()
  if(HOLDFAST_SANITIZE)
    math(EXPR TEST_TIMEOUT "4 * ${TEST_TIMEOUT}")
  endif()
  if(name IN_LIST HOLDFAST_QUICK_TESTS)
    list(APPEND TEST_LABELS quick)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${TEST_TIMEOUT} LABELS "${TEST_LABELS}"
    ENVIRONMENT "HOLDFAST_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  if(TEST_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()
