package config

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/policy/file"
)

// maxDefaultRetain bounds the default of audit.retain.bytes.
const maxDefaultRetain = 10 << 30

// Retained returns the limits of serve's log, and whether they are defaults. The default is a tenth of the
// file system, at least four segments and at most 10 GiB. It is never below the present size of the log,
// so a start removes no records because of the default.
func (c *Config) Retained() (r file.Retain, byDefault bool, err error) {
	r = c.File.Audit.Retain
	if r != (file.Retain{}) {
		return r, false, nil
	}
	dir, err := c.AuditDir()
	if err != nil {
		return r, false, err
	}
	r.Bytes = maxDefaultRetain
	switch size, err := sizeOfDisk(dir); {
	case err == nil:
		r.Bytes = min(size/10, maxDefaultRetain)
	case !errors.Is(err, errors.ErrUnsupported):
		return r, false, err
	}
	there, err := sizeOfLog(dir)
	if err != nil {
		return r, false, err
	}
	r.Bytes = max(r.Bytes, 4*cmp.Or(c.File.Audit.SegmentBytes, audit.DefaultSegmentBytes), there)
	if len(c.File.Audit.Sinks) > 0 {
		r.Sinks.Bytes = 2 * r.Bytes
	}
	return r, true, nil
}

// sizeOfDisk returns the size of the file system of dir or its nearest existing parent.
func sizeOfDisk(dir string) (int64, error) {
	for {
		_, size, err := audit.Space(dir)
		if above := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && above != dir {
			dir = above
			continue
		}
		return size, err
	}
}

func sizeOfLog(dir string) (n int64, err error) {
	paths, err := audit.Segments(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return 0, err
		}
		n += info.Size()
	}
	return n, nil
}
