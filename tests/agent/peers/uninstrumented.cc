// OpenSSL protects data shared by connections (sessions and certificates) with atomics that
// ThreadSanitizer cannot see, because the distribution's library is not instrumented. Reports about
// accesses within the library are therefore suppressed. The sanitizer calls this function by name.

extern "C" const char* __tsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libcrypto.so\n"; }
