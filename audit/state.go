package audit

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
