# C types for the compiled build of record_rows.py.
cimport cython
from libc.string cimport memchr, memcmp

from rocketpost.kernel.crc cimport crc_of
from rocketpost.kernel.send_properties cimport hash_text, key_hash, signed_hash
from rocketpost.kernel.send_text cimport is_text
from rocketpost.kernel.send_types cimport Long, Source

cdef Long _MAGIC_V1, _MAGIC_V2, _CRC_MASK, _OFFSET_END
cdef Py_ssize_t _SMALLEST, _CHECKSUM_BYTES, _ROW
cdef int _BORN_V6, _STORE_V6, _NOT_IN_QUEUE, _ABSENT, _HOLDS, _FAILS
cdef int _NAME_END, _VALUE_END, _SPACE
cdef const char* _CHECKSUM_NAME
cdef int _NUMBERS, _NAME_AT, _NAME_BYTES, _QUEUE_ID, _SLOT, _KEY_STATE
cdef unsigned int _SPREAD, _WORD


cdef class QueueNames:
    cdef Long[::1] numbers, places
    cdef unsigned char[::1] names
    cdef Py_ssize_t name_bytes, last
    cdef readonly Py_ssize_t count

    @cython.locals(number=Py_ssize_t, i=Py_ssize_t, at=Py_ssize_t, each=Py_ssize_t)
    cpdef void add(self, bytes topic, Long queue_id, Long slot, Long key_state)

    @cython.locals(mask=Py_ssize_t, place=Py_ssize_t, found=Py_ssize_t)
    cdef Py_ssize_t find(self, Source p, Py_ssize_t at, Py_ssize_t end, Long queue_id) noexcept

    cdef Long slot_of(self, Py_ssize_t number) noexcept

    cdef Long key_state_of(self, Py_ssize_t number) noexcept

    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, mask=Py_ssize_t, place=Py_ssize_t, names=Source)
    cdef void _enter(self, Py_ssize_t number) noexcept

    @cython.locals(begin=Py_ssize_t, size=Py_ssize_t, is_same=cython.bint)
    cdef bint _is_queue(self, Py_ssize_t number, Source p, Py_ssize_t at, Py_ssize_t end,
                        Long queue_id) noexcept


cdef class RowScanner:
    cdef QueueNames queues
    cdef bint wants_keys, requires_checksum
    cdef Long[::1] offsets, rows, times, keys
    cdef Py_ssize_t slot_count, row_room, key_room, first_row
    cdef readonly Py_ssize_t row_at, key_at
    cdef readonly bint is_full, has_fallen

    cpdef void use_offsets(self, offsets)

    cpdef void use_buffers(self, rows, times, keys)

    cpdef void rewind(self) noexcept

    @cython.locals(end=Py_ssize_t, at=Py_ssize_t, size=Py_ssize_t, p=Source)
    cpdef Py_ssize_t scan(self, const unsigned char[::1] data, Py_ssize_t start, Long position,
                          Long room_end)

    @cython.locals(size=Long, magic=Long, end=Py_ssize_t, sys_flag=Long, store_at=Py_ssize_t,
                   body_at=Py_ssize_t, body_bytes=Long, topic_at=Py_ssize_t, topic_bytes=Long,
                   topic_end=Py_ssize_t, text_at=Py_ssize_t, queue=Py_ssize_t, slot=Long,
                   queue_offset=Long, checksum=cython.int, row=Py_ssize_t, store_ms=Long)
    cdef Py_ssize_t _take(self, Source p, Py_ssize_t at, Py_ssize_t data_end, Long position,
                          Long room_end) noexcept

    @cython.locals(tags_at=Py_ssize_t, tags_end=Py_ssize_t, unique_at=Py_ssize_t,
                   unique_end=Py_ssize_t, keys_at=Py_ssize_t, keys_end=Py_ssize_t,
                   piece_end=Py_ssize_t, size=Py_ssize_t, count=Py_ssize_t, word_end=Py_ssize_t)
    cdef bint _read_words(self, Source p, Py_ssize_t at, Py_ssize_t end, Long state, Long position,
                          Py_ssize_t row) noexcept

    cdef bint _put_key(self, Py_ssize_t count, Source p, Py_ssize_t at, Py_ssize_t end, Long state,
                       Long position) noexcept


@cython.locals(end=Py_ssize_t, at=Py_ssize_t, size=Long, magic=Long, p=Source)
cpdef Py_ssize_t records_end(const unsigned char[::1] data)

@cython.locals(is_named=cython.bint, is_right=cython.bint, stated=Long, i=Py_ssize_t)
cdef int _judge(Source p, Py_ssize_t at, Py_ssize_t text_at, Py_ssize_t end) noexcept

cdef bint _has_zero(Source p, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(found=Source, place=Py_ssize_t)
cdef Py_ssize_t _find(Source p, Py_ssize_t at, Py_ssize_t end, int mark) noexcept

cdef bint _is_same(Source p, Py_ssize_t at, const char* other, Py_ssize_t size) noexcept

@cython.locals(four=Source, number=cython.uint)
cdef Long _unsigned(Source p, Py_ssize_t at) noexcept

@cython.locals(high=Long)
cdef Long _long(Source p, Py_ssize_t at) noexcept

cdef unsigned int _place(Source p, Py_ssize_t at, Py_ssize_t end, Long queue_id) noexcept

@cython.locals(h=cython.uint, i=Py_ssize_t)
cdef unsigned int _hash_bytes(Source p, Py_ssize_t at, Py_ssize_t end) noexcept
