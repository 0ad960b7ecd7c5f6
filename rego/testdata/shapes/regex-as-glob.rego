# from: newcomers, a glob as a regular expression
# says: is for host.matches
package egress

allow contains {"rule": "shop"} if regex.match("*.shop.test", input.destination.host)
