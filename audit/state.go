package audit

import "encoding/base64"

// A State is how a log is, for who watches it.
type State struct {
	Written int64 // records that are acknowledged, of all times
	Durable int64 // of those, that are synced
	Signed  int64 // of those, that the newest durable checkpoint is for; 0 where the log is not signed
	Refused int64 // records that could not be written since it was opened
	Err     error // as of [Log.Err]
}

// State returns how the log is. It waits for no disk.
func (l *Log) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := State{Written: l.written, Durable: l.durable, Refused: l.refused.Load(), Err: l.err}
	if l.notary != nil {
		s.Signed = l.notary.signed.Load()
	}
	return s
}

// Tree returns the number of records that are written and the root of their tree (RFC 6962), in base64. The root is empty where the
// log is not signed.
func (l *Log) Tree() (size int64, root string) {
	if l.notary == nil {
		return l.State().Written, ""
	}
	l.mu.Lock()
	m := l.writtenMark
	l.mu.Unlock()
	hash := m.Root()
	return m.Size, base64.StdEncoding.EncodeToString(hash[:])
}
