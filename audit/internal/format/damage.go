package format

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path/filepath"
)

// A DamageError says where a log does not hold together.
type DamageError struct {
	Segment string // the path of the file
	Offset  int64  // of the line in it, in bytes
	Reason  string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("the audit log is damaged: %s at byte %d: %s; restore the file from a copy, or move the whole directory away as evidence and begin a new log",
		e.Segment, e.Offset, e.Reason)
}

// Torn describes bytes at the end of a segment that are no whole line. An interrupted write left them, and no caller
// was told that this write had succeeded.
type Torn struct {
	Segment string // the file's name, without its directory
	Offset  int64  // where in it the torn bytes began
	Bytes   int64
	SHA256  string // of these bytes, in hexadecimal digits

	// Moved reports that the bytes were moved from the segment to the end of the file with the same number
	// and the extension .torn.
	Moved bool
}

// DescribeTorn reads what stands behind offset in a segment, and copies it to
// copyTo.
func DescribeTorn(path string, offset int64, copyTo io.Writer) (Torn, error) {
	f, err := OpenFile(path)
	if err != nil {
		return Torn{}, err
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return Torn{}, err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(sum, copyTo), f)
	if err != nil {
		return Torn{}, err
	}
	return Torn{Segment: filepath.Base(path), Offset: offset, Bytes: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}
