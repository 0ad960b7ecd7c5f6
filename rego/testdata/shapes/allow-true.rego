# from: newcomers, one line that opens everything
# says: allow contains {"rule": "NAME"}
package egress

allow := true
