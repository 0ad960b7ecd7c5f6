package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/fsnotify/fsnotify"
)

// changes tells of changes of the policy file, and of what it names under rego, allow_file and deny_file.
// Their folders are watched, since editors replace files; a burst of events counts
// once. It tells once at the start too, when there may have been one already.
func (re *reloading) changes(ctx context.Context) <-chan struct{} {
	told := make(chan struct{}, 1)
	w, err := fsnotify.NewWatcher()
	if err == nil {
		err = w.Add(filepath.Dir(re.daemon.Path))
	}
	if err != nil {
		fmt.Fprintf(re.daemon.Talk, "egressd: warning: changes of %s are not seen (%v); send SIGHUP after an edit\n", re.daemon.Path, err)
		return told
	}
	re.files = w
	config.StateOf(re.daemon.Path, re.above, re.watch)
	re.daemon.Serving.Go(func() {
		defer w.Close()
		tellChanges(ctx, w, filepath.Base(re.daemon.Path), told)
	})
	return told
}

// watch has the changes in a folder told, too, or those of a single file. It comes before the folder is listed,
// so that nothing is missed that comes after.
func (re *reloading) watch(folder string) {
	if re.files == nil {
		return
	}
	if err := re.files.Add(folder); err != nil && !errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(re.daemon.Talk, "egressd: warning: changes in %s are not seen (%v); send SIGHUP after an edit\n", folder, err)
	}
}

// quiet is how long the folders have to be still before a change counts, and
// patience how long that may put it off: others may write in them all the time.
const (
	quiet    = 50 * time.Millisecond
	patience = time.Second
)

// mounted is the link by which Kubernetes replaces a mounted folder's files.
const mounted = "..data"

func tellChanges(ctx context.Context, w *fsnotify.Watcher, name string, told chan<- struct{}) {
	still := time.NewTimer(0)
	defer still.Stop()
	first := time.Now() // of the events that have not been told
	changed := func() {
		if first.IsZero() {
			first = time.Now()
		}
		still.Reset(max(0, min(quiet, patience-time.Since(first))))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case e, open := <-w.Events:
			if !open {
				return
			}
			if matters(e, name) || slices.Contains(w.WatchList(), e.Name) {
				changed()
			}
		case <-w.Errors: // an overflow is a change too
			changed()
		case <-still.C:
			first = time.Time{}
			select {
			case told <- struct{}{}:
			default:
			}
		}
	}
}

// matters reports whether the policy may be another one after the event. Of what
// comes or goes it is not known whether it was a folder.
func matters(e fsnotify.Event, name string) bool {
	base := filepath.Base(e.Name)
	return base == name || base == mounted || config.IsRegoFile(base) || config.IsBundleFile(base) || e.Has(fsnotify.Create|fsnotify.Remove|fsnotify.Rename)
}
