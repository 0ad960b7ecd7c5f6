package daemon

// answering says that there is an operator's listener, at which what the policy asks is
// answered, until stop is called. How long flows are held is read at the start, as all limits.
func (d *Daemon) answering() (stop func()) {
	wait := d.Config.File.Limits.AskWait
	d.Gate.Approvals.Open(true, wait)
	return func() { d.Gate.Approvals.Open(false, wait) }
}
