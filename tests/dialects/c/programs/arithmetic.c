// The program's rounding, its traps and its flushing of subnormal numbers change no result, and are
// as they were after a call.
#define _GNU_SOURCE
#include <fenv.h>
#include <stdio.h>
#include <string.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "once.h"

int main(void)
{
    float usual[24], found[24];
    feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
    aclInit(NULL); // starts Python, and imports NumPy
    fedisableexcept(FE_ALL_EXCEPT);
    printf("%d", compute_once(usual));
    fesetround(FE_UPWARD);
    printf(" %d", compute_once(found));
    printf(" %d %d", memcmp(usual, found, sizeof usual), fegetround() == FE_UPWARD);
    fesetround(FE_TONEAREST);
#ifdef __SSE__
    _mm_setcsr(_mm_getcsr() | 0x8040); // flush to zero, denormals are zero
    printf(" %d", compute_once(found));
    printf(" %d %d", memcmp(usual, found, sizeof usual), (_mm_getcsr() & 0x8040) == 0x8040);
    _mm_setcsr(_mm_getcsr() & ~0x8040u);
#else
    printf(" 0 0 1");
#endif
    feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
    printf(" %d", compute_once(found));
    printf(" %d %x\n", memcmp(usual, found, sizeof usual), (unsigned)aclFloatToFloat16(1e30f));
    return 0;
}
