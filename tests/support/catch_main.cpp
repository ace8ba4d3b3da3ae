// Catch2 2 wants one file that defines main(); Catch2 3 brings it as a library.
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
