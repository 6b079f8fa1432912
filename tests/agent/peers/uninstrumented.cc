// OpenSSL guards what connections share (sessions and their certificates) by atomics that
// ThreadSanitizer does not see, as the distribution's library is not built for it: what it reads
// and writes by itself says nothing. The sanitizer asks for this by its name.

extern "C" const char* __tsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libcrypto.so\n"; }
