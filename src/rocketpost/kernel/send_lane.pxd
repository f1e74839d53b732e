# C types for the compiled build of send_lane.py.
cimport cython

from rocketpost.kernel.send_types cimport Long, Send, Source, Target
from rocketpost.kernel.send_headers cimport may_be_send, read_binary, read_json
from rocketpost.kernel.send_properties cimport entry_text, is_nothing_shared, read_properties
from rocketpost.kernel.send_records cimport RecordWriter
from rocketpost.kernel.send_text cimport PropertyShape, SendShape
from rocketpost.kernel.send_replies cimport reply_bytes_max, write_reply
from rocketpost.kernel.send_topics cimport TopicTable
from rocketpost.kernel.signatures cimport Signer, SignedText, Verifier

cdef int _MORE, _ODD, _FULL, _OTHER, _SAVED, _ROW, _ROW_SLOT, _ROW_OFFSET
cdef Py_ssize_t _SCRATCH_BYTES, _REPLY_BYTES, _FRAME_BYTES_MAX, _PREFIX_BYTES, _PEEK_BYTES
cdef Py_ssize_t _ENTRY_BYTES, _ITEMS_MAX


cdef class Lane:
    cdef Send send
    cdef readonly TopicTable topics
    cdef readonly RecordWriter writer
    cdef SendShape json_shape, binary_shape
    cdef PropertyShape item_shape
    cdef Verifier verifier
    cdef SignedText spare_text
    cdef Signer signer
    cdef Long[::1] saved
    cdef unsigned char[::1] replies, scratch
    cdef const unsigned char[::1] special, prefix, json_pieces, binary_pieces
    cdef Long[::1] json_ends, binary_ends
    cdef Py_ssize_t reply_at, special_bytes, body_max
    cdef bint is_configured
    cdef readonly Py_ssize_t at, frames, answers
    cdef readonly int verdict, encoding
    cdef readonly Long code

    cpdef bint is_offered(self, object data, Py_ssize_t at, Py_ssize_t end)

    @cython.locals(send="Send*", replies=bytes)
    cpdef bytes take(self, object data, Py_ssize_t at, Py_ssize_t end, bytes born_host,
                     Signer signer=*)

    @cython.locals(scratch=Target, end=Py_ssize_t, header_at=Py_ssize_t, header_end=Py_ssize_t,
                   encoding=cython.int, is_plain=cython.bint, verdict=cython.int,
                   shape=SendShape, signed=SignedText,
                   is_by_shape=cython.bint)
    cdef int _take_frames(self, Source p, Py_ssize_t at, Py_ssize_t size, Send* send) noexcept

    @cython.locals(verifier=Verifier, text=Source, i=Py_ssize_t)
    cdef bint _promise(self, Source p, Py_ssize_t at, Py_ssize_t body_at, Py_ssize_t end,
                       SignedText signed, Send* send) noexcept

    @cython.locals(count=cython.int, good=cython.int, i=Py_ssize_t, first=Py_ssize_t,
                   row=Py_ssize_t, slot=Long)
    cdef bint _settle(self) noexcept

    @cython.locals(topics=TopicTable, writer=RecordWriter, topic=Py_ssize_t, slot=Py_ssize_t,
                   text=Source, row=Py_ssize_t, key=Py_ssize_t, queue_offset=Long,
                   verdict=cython.int, shape=SendShape)
    cdef int _take_send(self, Source p, Py_ssize_t body_at, Py_ssize_t end, Send* send,
                        int encoding) noexcept

    @cython.locals(writer=RecordWriter, row=Py_ssize_t, key=Py_ssize_t, queue_offset=Long,
                   count=Py_ssize_t, unique_at=Py_ssize_t, unique_end=Py_ssize_t,
                   verdict=cython.int, text_at=Py_ssize_t, text_end=Py_ssize_t,
                   shape=PropertyShape, scratch=Target)
    cdef int _take_batch(self, Source p, Py_ssize_t at, Py_ssize_t end, Source shared,
                         Py_ssize_t topic, Py_ssize_t slot, Send* send, int encoding) noexcept

    @cython.locals(special=Source)
    cdef bint _is_plain(self, Source text, Py_ssize_t at, Py_ssize_t end, Send* send) noexcept

    @cython.locals(pieces_bytes=Py_ssize_t, size_max=Py_ssize_t, out=Target, prefix=Source,
                   rows="Long*", pieces=Source, ends="Long*")
    cdef bint _answer(self, Source text, Py_ssize_t row, Py_ssize_t count, Long queue_offset,
                      Send* send, int encoding) noexcept


@cython.locals(number=Long)
cdef Long _int(Source p, Py_ssize_t at) noexcept
