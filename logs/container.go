package logs

import "github.com/egressd/egressd/egress"

func containerName(r *egress.Record) string {
	if r.Container == nil {
		return ""
	}
	return r.Container.Name
}

func containerID(r *egress.Record) string {
	if r.Container == nil {
		return ""
	}
	return r.Container.ID
}
