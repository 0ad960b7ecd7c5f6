# from: deploy windows
# lint: time.weekday never returns
# deny: https://a.shop.test/
package egress

allow contains {"rule": "days"} if time.weekday(time.now_ns()) in {"Mon", "Tue"}
