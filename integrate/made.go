package integrate

import "io/fs"

// A Made is one file that is egressd's own, as it is to be.
type Made struct {
	Path string
	Text string
	Mode fs.FileMode
}

// A Set is files that go together, and what whoever writes them has to do or to know: one
// line each.
type Set struct {
	Files []Made
	Notes []string
}
