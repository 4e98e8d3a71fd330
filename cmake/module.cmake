# Every target is compiled with signalbox_flags.
add_library(signalbox_flags INTERFACE)
target_include_directories(signalbox_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_options(signalbox_flags INTERFACE -Wall -Wextra -Wno-missing-field-initializers
                       $<$<BOOL:${SIGNALBOX_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # False alarm on `"literal" + std::string` with -O2 and above (GCC bug 105651, open in 12).
  target_compile_options(signalbox_flags INTERFACE -Wno-restrict)
endif()
target_compile_definitions(signalbox_flags INTERFACE SIGNALBOX_VERSION="${PROJECT_VERSION}")
target_link_libraries(signalbox_flags INTERFACE Threads::Threads fmt::fmt)
if(SIGNALBOX_SANITIZE)
  # g++ 12 cannot follow a variant's index through sanitizer checks and takes its members for uninitialised.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Nor that Asio frees a coroutine's frame the way it allocated it.
    target_compile_options(signalbox_flags INTERFACE -Wno-maybe-uninitialized -Wno-mismatched-new-delete)
  else()
    # What clang 14 puts before a function for that check, it cannot put before a coroutine.
    set(no_function_check -fno-sanitize=function)
  endif()
  target_compile_options(signalbox_flags INTERFACE -fsanitize=${SIGNALBOX_SANITIZE}
                         ${no_function_check} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_compile_definitions(signalbox_flags INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(signalbox_flags INTERFACE -fsanitize=${SIGNALBOX_SANITIZE})
endif()
if(SIGNALBOX_FUZZ)
  target_compile_options(signalbox_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Modules whose tests run under the thread sanitizer too (ctest label `threads`).
set(SIGNALBOX_THREADED_MODULES base comm)

# Ten files read the same headers once. So names of a module's unnamed namespaces must differ, and each test file
# has a namespace of its own. Files with flags of their own, and generated ones, stay apart.
function(signalbox_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SIGNALBOX_UNITY} UNITY_BUILD_BATCH_SIZE 10)
endfunction()

add_custom_target(threaded_tests)
add_custom_target(fuzzers)

# ctest runs a fuzzer for a bounded time, from its seeds (testdata/NAME_fuzz/, one input a file) and from what
# earlier runs found.
function(signalbox_fuzz_test target)
  set(corpus ${CMAKE_BINARY_DIR}/corpus/${target})
  file(MAKE_DIRECTORY ${corpus})
  set(seeds ${CMAKE_CURRENT_SOURCE_DIR}/testdata/${target})
  if(NOT EXISTS ${seeds})
    set(seeds "")
  endif()
  add_test(NAME ${target} COMMAND ${target} -max_total_time=${SIGNALBOX_FUZZ_SECONDS} -timeout=10
           -rss_limit_mb=2048 -artifact_prefix=${CMAKE_BINARY_DIR}/${target}- ${corpus} ${seeds})
  math(EXPR timeout "${SIGNALBOX_FUZZ_SECONDS} + 120")
  set_tests_properties(${target} PROPERTIES LABELS fuzz TIMEOUT ${timeout})
endfunction()

# signalbox_module(NAME [DEPS module...] [LIBS target...] [EXCEPT file...] [SHARDS n] [HOT])
#
# One directory under src/signalbox is one module. Its files say what they are by their names:
#   *_test.cc -> program NAME_test, *_benchmark.cc -> program NAME_benchmark, *_fuzz.cc -> one libFuzzer
#   program each, every other *.cc -> the static library signalbox_NAME.
# DEPS are modules below this one (scripts/check_deps.py holds includes to them). EXCEPT are files that this build
# does without. SHARDS are processes that share the tests of the program. HOT: its loops run over weights, rows or
# bytes, so it is optimised under the sanitizers too; elsewhere there that only lengthens the build.
function(signalbox_module name)
  cmake_parse_arguments(ARG "HOT" "SHARDS" "DEPS;LIBS;EXCEPT" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  list(TRANSFORM ARG_EXCEPT PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(REMOVE_ITEM sources ${ARG_EXCEPT})
  set(tests ${sources})
  set(benchmarks ${sources})
  set(fuzzers ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER benchmarks INCLUDE REGEX "_benchmark\\.cc$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")
  list(FILTER sources EXCLUDE REGEX "(_test|_benchmark|_fuzz|main)\\.cc$")

  list(TRANSFORM ARG_DEPS PREPEND signalbox_ OUTPUT_VARIABLE deps)
  if(sources)
    add_library(signalbox_${name} STATIC ${sources})
    signalbox_unity(signalbox_${name})
    if(SIGNALBOX_SANITIZE)
      target_compile_options(signalbox_${name} PRIVATE $<IF:$<BOOL:${ARG_HOT}>,-O1,-O0>)
    endif()
    target_link_libraries(signalbox_${name} PUBLIC signalbox_flags ${deps} PRIVATE ${ARG_LIBS})
  else()
    add_library(signalbox_${name} INTERFACE)
    target_link_libraries(signalbox_${name} INTERFACE signalbox_flags ${deps})
  endif()

  if(SIGNALBOX_TESTS AND tests)
    add_executable(${name}_test ${tests})
    signalbox_unity(${name}_test)
    target_link_libraries(${name}_test PRIVATE signalbox_${name} ${ARG_LIBS} signalbox_rapidcheck
                          GTest::gmock GTest::gtest_main)
    target_compile_definitions(${name}_test PRIVATE
      SIGNALBOX_SOURCE_DIR="${PROJECT_SOURCE_DIR}" SIGNALBOX_TESTDATA="${CMAKE_CURRENT_SOURCE_DIR}/testdata")
    # Optimising test code doubles its compile time; the library under test stays optimised.
    if(SIGNALBOX_SANITIZE)
      target_compile_options(${name}_test PRIVATE -O0)
    else()
      target_compile_options(${name}_test PRIVATE -O1)
    endif()
    # Shards are parts of a long program that run side by side.
    set(shards ${name}_test)
    if(ARG_SHARDS)
      set(shards)
      foreach(shard RANGE 1 ${ARG_SHARDS})
        list(APPEND shards ${name}_test_${shard})
      endforeach()
    endif()
    set(index 0)
    foreach(shard ${shards})
      add_test(NAME ${shard} COMMAND ${name}_test)
      list(LENGTH shards total)
      set_tests_properties(${shard} PROPERTIES
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${total};GTEST_SHARD_INDEX=${index}")
      math(EXPR index "${index} + 1")
    endforeach()
    set(labels fast)
    if(name IN_LIST SIGNALBOX_THREADED_MODULES)
      list(APPEND labels threads)
      add_dependencies(threaded_tests ${name}_test)
    endif()
    set_tests_properties(${shards} PROPERTIES LABELS "${labels}" TIMEOUT 1800)
  endif()
  if(SIGNALBOX_BENCHMARKS AND benchmarks)
    add_executable(${name}_benchmark ${benchmarks})
    target_link_libraries(${name}_benchmark PRIVATE signalbox_${name} ${ARG_LIBS} benchmark::benchmark_main)
  endif()
  if(SIGNALBOX_FUZZ)
    foreach(fuzzer ${fuzzers})
      get_filename_component(target ${fuzzer} NAME_WE)
      add_executable(${target} ${fuzzer})
      target_link_libraries(${target} PRIVATE signalbox_${name} ${ARG_LIBS})
      target_compile_definitions(${target} PRIVATE SIGNALBOX_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
      target_link_options(${target} PRIVATE -fsanitize=fuzzer)
      add_dependencies(fuzzers ${target})
      signalbox_fuzz_test(${target})
    endforeach()
  endif()
endfunction()
