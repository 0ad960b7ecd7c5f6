package audit

import (
	"time"
)

// A Durability says what a record has to survive before Durable and Wait
// report it.
type Durability uint8

const (
	Disk    Durability = iota // a crash of the machine: the record was synced
	Process                   // a crash of this process: the record was written
)

// Options say how a log is written. The zero value is ready for use.
type Options struct {
	// Durability says when Durable and Wait succeed. With either value, every record is synced a tenth of a second
	// after it was written, as fast as the disk is, and before its segment is closed.
	Durability Durability

	// SegmentBytes is the size at which a segment is followed by a new one;
	// 64 MiB where it is 0. A segment is larger only where a single write was.
	SegmentBytes int64

	// Keys is the folder of the private keys, which nobody else may be able to
	// read; log-keys beside the log where it is "". One folder can hold the keys
	// of many logs.
	Keys string
	// Epoch is how long a key signs at most while there is something to sign; an
	// hour where it is 0.
	Epoch time.Duration
	// Ephemeral keeps the keys in memory, where they end with the log, which
	// cannot be opened again then. The first checkpoint is made beside the first
	// records, a tenth of a second after Create or when the log is closed.
	Ephemeral bool
	// Vouch is called once, before the first checkpoint is written, which Create
	// does where the log is not ephemeral: with the log's origin and its root key,
	// for who keeps them elsewhere. An error makes the log admit nothing until a
	// later call succeeds. It may be nil.
	Vouch func(origin, root string) error

	// Brief is for a log that is opened often for a record or two. Open then reads only the last seal and the last
	// checkpoint; damage elsewhere is for the verifier to find. Open makes the key that takes over at
	// Close in the background, and syncs no line that was synced before it was signed.
	Brief bool

	// Floor is the free space of the log's file system, in bytes, below which [Log.Scarce] reports
	// true: a tenth of the file system where it is 0, but at most 1 GiB.
	Floor int64

	// Retain is what of the log is kept. The zero value keeps all.
	Retain Retain
	// Owed returns the seq of the first record that a receiver still needs, or a seq beyond the log if none does. known is
	// false until the receivers' positions are read; until then nothing is removed. Owed must not block or call
	// the log. It may be nil.
	Owed func() (seq int64, known bool)
	// Anchor is called with each checkpoint that is durable, a signed note, for who
	// keeps it elsewhere. It must be quick, must not wait, must not call the log,
	// and must not change or keep the bytes. It may be nil.
	Anchor func(checkpoint []byte)
	// Last is called with the checkpoint that Close makes, if any. At that moment the records are durable and the
	// Checkpoint is written but not yet synced. A log that is not Ephemeral may call Last twice; the second
	// Checkpoint counts. Last must not block, call the log, or change or keep the bytes. It may be nil.
	Last func(checkpoint []byte)
	// Trouble is told what goes wrong beside the writing of records, and does not
	// stop it. It must be quick and must not call the log. It may be nil.
	Trouble func(error)

	// Changed is called with the error when the log stops admitting records, and with nil when it
	// goes on. It must be quick, must not wait and must not call the log. It may be nil.
	Changed func(error)
	// Recovery returns the record with which the log goes on after that, first in its fresh
	// segment. It must be quick and must not call the log. It may be nil.
	Recovery func(Interruption) []byte

	clocks   func() reading // of the machine, for tests; nil: readClocks
	unsigned bool           // neither tree nor checkpoints: for tests of what is below them
}
