# C types for the compiled build of signatures.py.
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.string cimport memcmp, memcpy

from rocketpost.kernel.send_types cimport Long, Send, Source, Target


cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    /* A text to be hashed is three runs of whole blocks of 64 bytes: its beginning, which was put
       together in a buffer; the middle, which is read where it is; and its padded end. */
    typedef struct {
        const unsigned char *head, *middle, *tail, *signature;
        size_t head_end, middle_end, end; /* in blocks */
        uint32_t state[5];
        unsigned char last[128];
    } sha1_job;

    static inline const unsigned char *sha1_block(const sha1_job *job, size_t i) {
        if (i < job->head_end)
            return job->head + 64 * i;
        if (i < job->middle_end)
            return job->middle + 64 * (i - job->head_end);
        return job->tail + 64 * (i - job->middle_end);
    }

    static inline uint32_t sha1_turn(uint32_t x, int n) { return x << n | x >> (32 - n); }

    /* FIPS 180-4, as it is written there. */
    static inline void sha1_plain(sha1_job *job, size_t from, size_t to) {
        uint32_t *state = job->state;
        for (; from < to; from++) {
            const unsigned char *p = sha1_block(job, from);
            uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], w[80];
            int i;
            for (i = 0; i < 16; i++)
                w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
                       (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
            for (; i < 80; i++)
                w[i] = sha1_turn(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
            for (i = 0; i < 80; i++) {
                uint32_t f = i < 20 ? (d ^ (b & (c ^ d))) + 0x5a827999u
                           : i < 40 ? (b ^ c ^ d) + 0x6ed9eba1u
                           : i < 60 ? ((b & c) | (d & (b | c))) + 0x8f1bbcdcu
                                    : (b ^ c ^ d) + 0xca62c1d6u;
                f += sha1_turn(a, 5) + e + w[i];
                e = d; d = c; c = sha1_turn(b, 30); b = a; a = f;
            }
            state[0] += a; state[1] += b; state[2] += c; state[3] += d; state[4] += e;
        }
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <cpuid.h>
    #include <immintrin.h>

    /* The processor's own SHA-1, four rounds to an instruction. Each waits for the one before, so
       four texts at a time take hardly longer than two. */
    #define SHA1_NI __attribute__((target("sha,sse4.1")))
    #define SHA1_STEP(i, kind) \\
        for (k = 0; k < WAYS; k++) { \\
            __m128i *e = (i) % 2 ? &odd[k] : &even[k]; \\
            *e = (i) ? _mm_sha1nexte_epu32(*e, w[(i) % 4][k]) : _mm_add_epi32(*e, w[0][k]); \\
            *((i) % 2 ? &even[k] : &odd[k]) = abcd[k]; \\
            if ((i) >= 3 && (i) <= 18) \\
                w[((i) + 1) % 4][k] = _mm_sha1msg2_epu32(w[((i) + 1) % 4][k], w[(i) % 4][k]); \\
            abcd[k] = _mm_sha1rnds4_epu32(abcd[k], *e, kind); \\
            if ((i) >= 1 && (i) <= 16) \\
                w[((i) + 3) % 4][k] = _mm_sha1msg1_epu32(w[((i) + 3) % 4][k], w[(i) % 4][k]); \\
            if ((i) >= 2 && (i) <= 17) \\
                w[((i) + 2) % 4][k] = _mm_xor_si128(w[((i) + 2) % 4][k], w[(i) % 4][k]); \\
        }
    #define SHA1_FIVE(i, kind) \\
        SHA1_STEP(i, kind) SHA1_STEP(i + 1, kind) SHA1_STEP(i + 2, kind) \\
        SHA1_STEP(i + 3, kind) SHA1_STEP(i + 4, kind)
    #define SHA1_BY_INSTRUCTIONS(name, ways) \\
        static inline SHA1_NI void name(sha1_job **jobs, size_t from, size_t to) { \\
            enum { WAYS = ways }; \\
            const __m128i swap = _mm_set_epi64x(0x0001020304050607LL, 0x08090a0b0c0d0e0fLL); \\
            __m128i abcd[WAYS], even[WAYS], odd[WAYS], w[4][WAYS], abcd0[WAYS], e0[WAYS]; \\
            int k, i; \\
            for (k = 0; k < WAYS; k++) { \\
                abcd[k] = _mm_loadu_si128((const __m128i *)jobs[k]->state); \\
                abcd[k] = _mm_shuffle_epi32(abcd[k], 0x1b); \\
                even[k] = _mm_set_epi32((int)jobs[k]->state[4], 0, 0, 0); \\
            } \\
            for (; from < to; from++) { \\
                for (k = 0; k < WAYS; k++) { \\
                    const unsigned char *p = sha1_block(jobs[k], from); \\
                    for (i = 0; i < 4; i++) \\
                        w[i][k] = _mm_shuffle_epi8( \\
                            _mm_loadu_si128((const __m128i *)(p + 16 * i)), swap); \\
                    abcd0[k] = abcd[k]; \\
                    e0[k] = even[k]; \\
                } \\
                SHA1_FIVE(0, 0) SHA1_FIVE(5, 1) SHA1_FIVE(10, 2) SHA1_FIVE(15, 3) \\
                for (k = 0; k < WAYS; k++) { \\
                    even[k] = _mm_sha1nexte_epu32(even[k], e0[k]); \\
                    abcd[k] = _mm_add_epi32(abcd[k], abcd0[k]); \\
                } \\
            } \\
            for (k = 0; k < WAYS; k++) { \\
                abcd[k] = _mm_shuffle_epi32(abcd[k], 0x1b); \\
                _mm_storeu_si128((__m128i *)jobs[k]->state, abcd[k]); \\
                jobs[k]->state[4] = (uint32_t)_mm_extract_epi32(even[k], 3); \\
            } \\
        }
    SHA1_BY_INSTRUCTIONS(sha1_one, 1)
    SHA1_BY_INSTRUCTIONS(sha1_four, 4)

    /* Sixteen texts side by side, a word of each in a register. */
    #define SHA1_WIDE __attribute__((target("avx512f,avx512bw")))
    #define SHA1_ROUND(i, constant, truth) { \\
        __m512i x = w[(i) % 16]; \\
        if ((i) >= 16) { \\
            x = _mm512_xor_si512(x, _mm512_ternarylogic_epi32( \\
                w[((i) + 13) % 16], w[((i) + 8) % 16], w[((i) + 2) % 16], 0x96)); \\
            x = w[(i) % 16] = _mm512_rol_epi32(x, 1); \\
        } \\
        x = _mm512_add_epi32(_mm512_add_epi32(x, _mm512_set1_epi32((int)(constant))), e); \\
        x = _mm512_add_epi32(x, _mm512_ternarylogic_epi32(b, c, d, truth)); \\
        x = _mm512_add_epi32(x, _mm512_rol_epi32(a, 5)); \\
        e = d; d = c; c = _mm512_rol_epi32(b, 30); b = a; a = x; \\
    }
    #define SHA1_ROUNDS5(i, constant, truth) \\
        SHA1_ROUND(i, constant, truth) SHA1_ROUND(i + 1, constant, truth) \\
        SHA1_ROUND(i + 2, constant, truth) SHA1_ROUND(i + 3, constant, truth) \\
        SHA1_ROUND(i + 4, constant, truth)
    #define SHA1_ROUNDS20(i, constant, truth) \\
        SHA1_ROUNDS5(i, constant, truth) SHA1_ROUNDS5(i + 5, constant, truth) \\
        SHA1_ROUNDS5(i + 10, constant, truth) SHA1_ROUNDS5(i + 15, constant, truth)

    static inline SHA1_WIDE void sha1_transpose(__m512i *r) {
        __m512i t[16];
        int i, j;
        for (i = 0; i < 16; i += 2) {
            t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
            t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        }
        for (i = 0; i < 16; i += 4)
            for (j = 0; j < 2; j++) {
                r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + 2 + j]);
                r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + 2 + j]);
            }
        for (i = 0; i < 16; i += 8)
            for (j = 0; j < 4; j++) {
                t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + 4 + j], 0x88);
                t[i + 4 + j] = _mm512_shuffle_i32x4(r[i + j], r[i + 4 + j], 0xdd);
            }
        for (i = 0; i < 8; i++) {
            r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
            r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
        }
    }

    /* Hashes the blocks before `to` of up to sixteen texts, those that have as many. */
    static inline SHA1_WIDE void sha1_sixteen(sha1_job *jobs, int count, size_t to) {
        const __m512i swap = _mm512_broadcast_i32x4(
            _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
        uint32_t state[5][16];
        __m512i s[5], w[16];
        size_t at;
        int i, k;
        for (i = 0; i < 5; i++)
            for (k = 0; k < 16; k++)
                state[i][k] = k < count ? jobs[k].state[i] : 0;
        for (i = 0; i < 5; i++)
            s[i] = _mm512_loadu_si512(state[i]);
        for (at = 0; at < to;) {
            /* Up to the next block at which one of the texts goes on elsewhere, or ends. */
            const unsigned char *p[16], *any = jobs[0].head;
            size_t next = to, from = at;
            __mmask16 has = 0;
            for (k = 0; k < count; k++)
                if (at < jobs[k].end) {
                    size_t end = at < jobs[k].head_end     ? jobs[k].head_end
                                 : at < jobs[k].middle_end ? jobs[k].middle_end
                                                           : jobs[k].end;
                    any = p[k] = sha1_block(&jobs[k], at);
                    has |= (__mmask16)(1 << k);
                    next = end < next ? end : next;
                }
            for (k = 0; k < 16; k++)
                if (!(has >> k & 1))
                    p[k] = any;
            for (; at < next; at++) {
                __m512i a = s[0], b = s[1], c = s[2], d = s[3], e = s[4];
                for (k = 0; k < 16; k++)
                    w[k] = _mm512_shuffle_epi8(_mm512_loadu_si512(p[k] + 64 * (at - from)), swap);
                sha1_transpose(w);
                SHA1_ROUNDS20(0, 0x5a827999u, 0xca)
                SHA1_ROUNDS20(20, 0x6ed9eba1u, 0x96)
                SHA1_ROUNDS20(40, 0x8f1bbcdcu, 0xe8)
                SHA1_ROUNDS20(60, 0xca62c1d6u, 0x96)
                s[0] = _mm512_mask_add_epi32(s[0], has, s[0], a);
                s[1] = _mm512_mask_add_epi32(s[1], has, s[1], b);
                s[2] = _mm512_mask_add_epi32(s[2], has, s[2], c);
                s[3] = _mm512_mask_add_epi32(s[3], has, s[3], d);
                s[4] = _mm512_mask_add_epi32(s[4], has, s[4], e);
            }
        }
        for (i = 0; i < 5; i++)
            _mm512_storeu_si512(state[i], s[i]);
        for (k = 0; k < count; k++)
            for (i = 0; i < 5; i++)
                jobs[k].state[i] = state[i][k];
    }

    static inline int sha1_ways(void) {
        unsigned int a, b = 0, c, d;
        int ways = 1;
        __builtin_cpu_init();
        if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1 && __builtin_cpu_supports("sse4.1"))
            ways = 4;
        if (ways == 4 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
            ways = 16;
        return ways;
    }
    #else
    static inline void sha1_one(sha1_job **jobs, size_t from, size_t to) {} /* never called */
    static inline void sha1_four(sha1_job **jobs, size_t from, size_t to) {}
    static inline void sha1_sixteen(sha1_job *jobs, int count, size_t to) {}
    static inline int sha1_ways(void) { return 1; }
    #endif

    /* Below this number of texts, sixteen at a time cost more than four at a time. */
    #define SHA1_WIDE_MIN 11

    static inline void sha1_jobs(sha1_job *jobs, int count, int ways) {
        sha1_job *left[16];
        size_t from = 0, end;
        int i, k, n = 0;
        if (ways == 1) {
            for (i = 0; i < count; i++)
                sha1_plain(&jobs[i], 0, jobs[i].end);
            return;
        }
        if (ways == 16 && count >= SHA1_WIDE_MIN) {
            size_t ends[16]; /* in falling order */
            for (i = 0; i < count; i++) {
                for (k = i; k > 0 && ends[k - 1] < jobs[i].end; k--)
                    ends[k] = ends[k - 1];
                ends[k] = jobs[i].end;
            }
            from = ends[SHA1_WIDE_MIN - 1];
            sha1_sixteen(jobs, count, from);
        }
        for (i = 0; i < count; i++)
            if (jobs[i].end > from)
                left[n++] = &jobs[i];
        for (i = 0; i + 4 <= n; i += 4) {
            end = left[i]->end;
            for (k = 1; k < 4; k++)
                if (left[i + k]->end < end)
                    end = left[i + k]->end;
            sha1_four(&left[i], from, end);
            for (k = 0; k < 4; k++)
                sha1_one(&left[i + k], end, left[i + k]->end);
        }
        for (; i < n; i++)
            sha1_one(&left[i], from, left[i]->end);
    }

    /* Makes a text a job: `text` has room for 63 bytes more, `before` bytes were hashed already. */
    static inline void sha1_prepare(sha1_job *job, unsigned char *text, size_t size, const unsigned char *body,
                             size_t body_size, const uint32_t *state, size_t before) {
        size_t whole = before + size + body_size, more = (64 - size % 64) % 64, rest;
        const unsigned char *from;
        unsigned char *tail = job->last;
        int i;
        if (more > body_size)
            more = body_size;
        memcpy(text + size, body, more);
        size += more;
        body += more;
        body_size -= more;
        job->head = text;
        job->head_end = size / 64;
        job->middle = body;
        job->middle_end = job->head_end + body_size / 64;
        rest = body_size % 64;
        from = body + body_size - rest;
        if (!body_size) {
            rest = size % 64;
            from = text + size - rest;
        }
        job->tail = tail;
        job->end = job->middle_end + (rest < 56 ? 1 : 2);
        memcpy(tail, from, rest);
        memset(tail + rest, 0, 128 - rest);
        tail[rest] = 0x80;
        tail += rest < 56 ? 56 : 120;
        for (i = 0; i < 8; i++)
            tail[i] = (unsigned char)((uint64_t)whole * 8 >> (56 - 8 * i));
        memcpy(job->state, state, 20);
    }

    static inline void sha1_digest(const sha1_job *job, unsigned char *digest) {
        int i;
        for (i = 0; i < 5; i++) {
            digest[4 * i] = (unsigned char)(job->state[i] >> 24);
            digest[4 * i + 1] = (unsigned char)(job->state[i] >> 16);
            digest[4 * i + 2] = (unsigned char)(job->state[i] >> 8);
            digest[4 * i + 3] = (unsigned char)job->state[i];
        }
    }

    static inline int sha1_is_base64(const unsigned char *digest, const unsigned char *signature) {
        static const char letters[] =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        unsigned int different = signature[27] ^ '=', i, bits;
        for (i = 0; i < 7; i++) {
            bits = (unsigned int)digest[3 * i] << 16 | (unsigned int)digest[3 * i + 1] << 8;
            if (i < 6) {
                bits |= digest[3 * i + 2];
                different |= signature[4 * i + 3] ^ (unsigned char)letters[bits & 63];
            }
            different |= signature[4 * i] ^ (unsigned char)letters[bits >> 18];
            different |= signature[4 * i + 1] ^ (unsigned char)letters[bits >> 12 & 63];
            different |= signature[4 * i + 2] ^ (unsigned char)letters[bits >> 6 & 63];
        }
        return !different;
    }

    /* Sets the state after one block. */
    static inline void sha1_begin(uint32_t *state, const unsigned char *block) {
        static const uint32_t start[5] = {
            0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u, 0xc3d2e1f0u};
        sha1_job job;
        memcpy(job.state, start, 20);
        if (block) {
            job.head = block;
            job.head_end = job.middle_end = job.end = 1;
            sha1_plain(&job, 0, 1);
        }
        memcpy(state, job.state, 20);
    }

    /* Returns how many of the first jobs have the right signatures. */
    static inline int sha1_verify(sha1_job *jobs, int count, const uint32_t *outer, int ways) {
        unsigned char digest[20];
        int i;
        sha1_jobs(jobs, count, ways);
        for (i = 0; i < count; i++) { /* one block: the digest, its padding, its length */
            sha1_digest(&jobs[i], jobs[i].last);
            memset(jobs[i].last + 20, 0, 44);
            jobs[i].last[20] = 0x80;
            jobs[i].last[62] = (64 + 20) * 8 >> 8;
            jobs[i].last[63] = (64 + 20) * 8 & 255;
            jobs[i].head = jobs[i].last;
            jobs[i].head_end = jobs[i].middle_end = jobs[i].end = 1;
            memcpy(jobs[i].state, outer, 20);
        }
        sha1_jobs(jobs, count, ways);
        for (i = 0; i < count; i++) {
            sha1_digest(&jobs[i], digest);
            if (!sha1_is_base64(digest, jobs[i].signature))
                return i;
        }
        return count;
    }
    """
    ctypedef struct sha1_job:
        const unsigned char* signature

    int sha1_ways() noexcept
    void sha1_begin(unsigned int* state, const unsigned char* block) noexcept
    void sha1_jobs(sha1_job* jobs, int count, int ways) noexcept
    void sha1_prepare(sha1_job* job, unsigned char* text, size_t size, const unsigned char* body,
                      size_t body_size, const unsigned int* state, size_t before) noexcept
    void sha1_digest(const sha1_job* job, unsigned char* digest) noexcept
    int sha1_verify(sha1_job* jobs, int count, const unsigned int* outer, int ways) noexcept

cdef int _WAYS, _GROUP_MAX, _FIELDS, _QUEUE_ID, _BORN_MS, _PROPERTIES
cdef Py_ssize_t _TEXT_BYTES, _SLOT_BYTES, _SIGNATURE_BYTES, _BLOCK_BYTES, _DIGEST_BYTES
cdef const unsigned char* _LETTERS_ORDER
cdef const unsigned char* _NAMES_ORDER


cdef class Signer:
    cdef readonly bytes access_key
    cdef bytes secret
    cdef unsigned int[5] inner
    cdef unsigned int[5] outer
    cdef sha1_job job
    cdef unsigned char[64] room
    cdef unsigned char[::1] topics
    cdef Py_ssize_t topic_count
    cdef Long epoch

    @cython.locals(i=Py_ssize_t)
    cpdef void allow(self, Py_ssize_t topic, Long epoch)

    cdef bint may_send(self, Py_ssize_t topic, Long epoch) noexcept

    cdef bint is_sender(self, Source p, Py_ssize_t at, Py_ssize_t end) noexcept

    cpdef bint is_signed(self, bytes text, bytes signature)


cdef class SignedText:
    cdef unsigned char[::1] fixed
    cdef Long[::1] ends, kinds
    cdef int gaps
    cdef bint is_known

    @cython.locals(order="const unsigned char*", size=Py_ssize_t, i=cython.int, field=cython.int,
                   at=Py_ssize_t, end=Py_ssize_t)
    cdef void learn(self, Source p, Send* send) noexcept

    @cython.locals(size=Py_ssize_t, i=cython.int, kind=Long, begin=Py_ssize_t, end=Py_ssize_t,
                   at=Py_ssize_t, source=Source)
    cdef Py_ssize_t write(self, Target out, Source p, Source text, Send* send) noexcept


cdef class Verifier:
    cdef sha1_job[16] jobs
    cdef unsigned int[5] state
    cdef unsigned char[64] room
    cdef unsigned char[20] digest
    cdef list pairs
    cdef unsigned char[::1] texts
    cdef int ways
    cdef readonly int count, limit

    @cython.locals(size=Py_ssize_t, out=Target)
    cdef bint add(self, Signer signer, SignedText signed, Source p, Py_ssize_t body_at, Py_ssize_t end,
                  Source text, Send* send) noexcept

    cdef void drop(self) noexcept

    @cython.locals(good=cython.int)
    cdef int check(self, Signer signer) noexcept

    @cython.locals(i=cython.int, text=bytes)
    cpdef list digests(self, list texts)
