# C types for the compiled build of crc.py.
cimport cython

from rocketpost.kernel.send_types cimport Source


cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>

    /* The CRC of a polynomial over GF(2) does not change if a block of it is multiplied by x^n and
       moved n bits ahead. Four blocks of 16 bytes are folded onto the next four, then into one, and
       that is reduced to 32 bits after Barrett. The constants are powers of x modulo the CRC-32
       polynomial, bits reversed: Gopal and others, "Fast CRC Computation for Generic Polynomials
       Using PCLMULQDQ", Intel 2009. */

    #define CRC_TARGET __attribute__((target("pclmul,sse4.1")))

    static inline CRC_TARGET __m128i crc_fold_block(__m128i block, __m128i next, __m128i powers) {
        __m128i low = _mm_clmulepi64_si128(block, powers, 0x00);
        __m128i high = _mm_clmulepi64_si128(block, powers, 0x11);
        return _mm_xor_si128(_mm_xor_si128(low, high), next);
    }

    static inline CRC_TARGET __m128i crc_load(const unsigned char *p) {
        return _mm_loadu_si128((const __m128i *)p);
    }

    /* Needs at least 64 bytes, and a multiple of 16. */
    static inline CRC_TARGET unsigned int fold(const unsigned char *p, size_t size, unsigned int crc) {
        const __m128i by_512 = _mm_set_epi64x(0x01c6e41596LL, 0x0154442bd4LL);
        const __m128i by_128 = _mm_set_epi64x(0x00ccaa009eLL, 0x01751997d0LL);
        const __m128i by_32 = _mm_set_epi64x(0, 0x0163cd6124LL);
        const __m128i barrett = _mm_set_epi64x(0x01f7011641LL, 0x01db710641LL);
        const __m128i low_words = _mm_setr_epi32(~0, 0, ~0, 0);
        const unsigned char *end = p + size;
        __m128i a = _mm_xor_si128(crc_load(p), _mm_cvtsi32_si128((int)crc));
        __m128i b = crc_load(p + 16), c = crc_load(p + 32), d = crc_load(p + 48);
        __m128i rest;
        for (p += 64; end - p >= 64; p += 64) {
            a = crc_fold_block(a, crc_load(p), by_512);
            b = crc_fold_block(b, crc_load(p + 16), by_512);
            c = crc_fold_block(c, crc_load(p + 32), by_512);
            d = crc_fold_block(d, crc_load(p + 48), by_512);
        }
        a = crc_fold_block(a, b, by_128);
        a = crc_fold_block(a, c, by_128);
        a = crc_fold_block(a, d, by_128);
        for (; end - p >= 16; p += 16) {
            a = crc_fold_block(a, crc_load(p), by_128);
        }
        /* 128 bits to 64, then to 32. */
        rest = _mm_clmulepi64_si128(a, by_128, 0x10);
        a = _mm_xor_si128(_mm_srli_si128(a, 8), rest);
        rest = _mm_srli_si128(a, 4);
        a = _mm_clmulepi64_si128(_mm_and_si128(a, low_words), by_32, 0x00);
        a = _mm_xor_si128(a, rest);
        rest = _mm_clmulepi64_si128(_mm_and_si128(a, low_words), barrett, 0x10);
        rest = _mm_clmulepi64_si128(_mm_and_si128(rest, low_words), barrett, 0x00);
        return (unsigned int)_mm_extract_epi32(_mm_xor_si128(a, rest), 1);
    }

    static inline int can_fold(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    }
    #else
    static inline unsigned int fold(const unsigned char *p, size_t size, unsigned int crc) {
        return crc; /* never called */
    }
    static inline int can_fold(void) { return 0; }
    #endif
    """
    int can_fold() noexcept
    unsigned int fold(const unsigned char* p, size_t size, unsigned int crc) noexcept

cdef unsigned int _MASK, _POLYNOMIAL
cdef Py_ssize_t _SLICES, _FOLD_BYTES_MIN
cdef bint _FOLDS
cdef unsigned int[16][256] _tables


@cython.locals(crc=cython.uint, whole=Py_ssize_t)
cdef unsigned int crc_of(Source p, Py_ssize_t at, Py_ssize_t size) noexcept

cpdef unsigned int checksum(bytes data, bint may_fold=*)

cdef unsigned int _crc_by_tables(Source p, Py_ssize_t at, Py_ssize_t end,
                                 unsigned int crc) noexcept

@cython.locals(byte=cython.int, crc=cython.uint, zeros=cython.int, _=cython.int)
cdef void _fill_tables() noexcept
