package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/record"
)

// beatEvery is the time between two heartbeats. Tests replace it.
var beatEvery = time.Minute

// heartbeats records once a minute how large the log is, also when nothing happens: a receiver of the log then sees that
// a machine is silent, and that the end of a log is gone. The state stands beside the log's keys too, where a log that is
// begun anew in the same folder finds which one it follows.
type heartbeats struct {
	path string // of the state
	beatState
	fresh bool // the log is another one than that of the last heartbeat
	begun bool // the daemon has started
	told  bool // an error of the state was told
}

// A beatState notes the log of a folder at its last heartbeat, and which log the folder had before.
type beatState struct {
	Folder  string `json:"folder"`
	Origin  string `json:"origin"`
	Size    int64  `json:"size"`
	Follows string `json:"follows,omitempty"`
	Had     int64  `json:"had,omitempty"`
}

const maxBeatState = 16 << 10

// open reads which log was in dir before.
func (h *heartbeats) open(dir, keys, origin string) {
	dir = absolute(dir)
	sum := sha256.Sum256([]byte(dir))
	h.path = filepath.Join(keys, fmt.Sprintf("log-%x.json", sum[:8]))
	h.beatState = beatState{Folder: dir, Origin: origin}
	text, err := durable.Read(h.path, maxBeatState)
	var last beatState
	switch {
	case err != nil, json.Unmarshal(text, &last) != nil:
		h.fresh = errors.Is(err, fs.ErrNotExist)
	case last.Origin == origin:
		h.beatState = last
	default:
		h.Follows, h.Had, h.fresh = last.Origin, last.Size, true
	}
}

// beat records a heartbeat every minute until ctx is done or the daemon stops. A log that follows another says so at
// once.
func (au *auditing) beat(ctx context.Context) {
	au.beats.begun = true
	if au.beats.Follows != "" && au.beats.fresh {
		au.heartbeat()
	} else if au.beats.fresh {
		au.beats.keep(au)
	}
	au.daemon.Serving.Go(func() {
		every := time.NewTicker(beatEvery)
		defer every.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-au.daemon.admin.ended:
				return
			case <-every.C:
				au.heartbeat()
			}
		}
	})
}

// heartbeat records one heartbeat. A log that admits nothing says so itself.
func (au *auditing) heartbeat() {
	h := &au.beats
	size, root := au.daemon.Log.Tree()
	if au.daemon.Gate.Records.Heartbeat(record.LogState{Origin: h.Origin, Size: size, Root: root, Follows: h.Follows, Had: h.Had}) != nil {
		return
	}
	h.Size = size + 1
	h.keep(au)
}

// end keeps the size that the log has at the end.
func (h *heartbeats) end(au *auditing) {
	if h.begun {
		h.Size, _ = au.daemon.Log.Tree()
		h.keep(au)
	}
}

// keep writes the state. An error is told once: a later log then cannot say what it follows. The log of a run has none: no other
// follows it.
func (h *heartbeats) keep(au *auditing) {
	if h.path == "" {
		return
	}
	text, err := json.Marshal(&h.beatState)
	if err == nil {
		err = durable.Replace(h.path, append(text, '\n'), 0o600)
	}
	if err != nil && !h.told {
		h.told = true
		au.daemon.Complain(fmt.Errorf("keep the size of the log beside its keys: %w", err))
	}
}
