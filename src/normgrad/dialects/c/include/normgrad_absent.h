// Functions of the vendors' that these libraries lack: programs that use them compile and link, and
// a call says on stderr that there is none. They take any arguments.
#ifndef NORMGRAD_ABSENT

#if defined(__cplusplus)
#define NORMGRAD_ABSENT_VALUE(type, name) type name(...);
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ > 201710L &&                                   \
    (__GNUC__ >= 13 || (defined(__clang_major__) && __clang_major__ >= 15))
#define NORMGRAD_ABSENT_VALUE(type, name) type name(...);
#else
#define NORMGRAD_ABSENT_VALUE(type, name)                                                          \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wstrict-prototypes\"")       \
        type name();                                                                               \
    _Pragma("GCC diagnostic pop")
#endif
// Those that return a status, and those that return nothing.
#define NORMGRAD_ABSENT(type, name) NORMGRAD_ABSENT_VALUE(type, name)
#define NORMGRAD_ABSENT_VOID(name) NORMGRAD_ABSENT_VALUE(void, name)

#endif
