package admin

import (
	"net/http"
	"strconv"
	"time"
)

// PageLease is how long sandboxes are kept away from the port of a page after the last request for it.
const PageLease = time.Minute

// page keeps sandboxes away from the port of a page. The process of the page asks before it listens, and
// again while it does.
func (s *Server) page(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port < 1024 || r.ContentLength != 0 {
		fail(w, http.StatusBadRequest, "a page has a port from 1024 to 65535, and no body", "egressd ui")
		return
	}
	if s.Page == nil {
		fail(w, http.StatusNotFound, "this egressd knows of no pages", "egressd ui --dir DIR")
		return
	}
	if !s.Page(uint16(port)) && s.record(w, r, "a page at port "+strconv.Itoa(int(port))+" of loopback") {
		return
	}
	write(w, http.StatusOK, map[string]any{"port": port, "seconds": PageLease.Seconds()})
}
