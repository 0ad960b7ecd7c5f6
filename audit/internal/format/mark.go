package format

// A Mark is the log up to a record: its tree, and where in which segment that
// ends.
type Mark struct {
	Edge
	Segment int
	First   int64 // seq of the first record of the segment
	Bytes   int64 // of the records of the segment
}

// Add adds a line, which has no newline.
func (m *Mark) Add(line []byte) {
	m.AppendLine(line)
	m.Bytes += int64(len(line) + 1)
}

// NewMark makes of a seal the mark at the beginning of the segment after it.
func NewMark(m *Mark, sealed *Checkpoint) (err error) {
	*m = Mark{Segment: sealed.Segment + 1, First: sealed.Size}
	m.Edge, err = NewEdge(sealed.Size, sealed.Edge)
	if err == nil && m.Root() != sealed.Root {
		err = errEdge
	}
	return err
}
